"""Action heads: distributions against their definitions, actions against their probabilities."""

import numpy as np
import pytest
import torch
from torch import distributions

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies import heads

CATEGORICAL = ActionSpec("categorical", (4, 3))
GAUSSIAN = ActionSpec("gaussian", (3,))
BERNOULLI = ActionSpec("bernoulli", (3,))
SAMPLES = 200_000


def outputs(spec: ActionSpec, rows: int) -> torch.Tensor:
    row = np.random.default_rng(1).normal(0, 1, heads.num_outputs(spec)).astype(np.float32)
    return torch.from_numpy(np.tile(row, (rows, 1)))


def reference(spec: ActionSpec, rows: torch.Tensor, log_std: torch.Tensor | None) -> list:
    if spec.kind == "categorical":
        return [distributions.Categorical(logits=part) for part in rows.split(spec.sizes, 1)]
    if spec.kind == "bernoulli":
        return [distributions.Independent(distributions.Bernoulli(logits=rows), 1)]
    assert log_std is not None
    return [distributions.Independent(distributions.Normal(rows, log_std.exp()), 1)]


@pytest.mark.parametrize("spec", [CATEGORICAL, GAUSSIAN, BERNOULLI], ids=lambda spec: spec.kind)
def test_log_prob_and_entropy(spec: ActionSpec) -> None:
    rows = outputs(spec, 64)
    log_std = torch.tensor([-1.0, 0.0, 0.7]) if spec.kind == "gaussian" else None
    noise = heads.draw_noise(spec, np.random.default_rng(2), 64)
    action, log_prob = heads.act(spec, rows, log_std, noise)
    evaluated = heads.evaluate(spec, rows, log_std, torch.from_numpy(action))
    parts = reference(spec, rows, log_std)
    values = torch.from_numpy(action)
    columns = [values[:, index] for index in range(len(parts))] if spec.kind == "categorical" else [values]
    expected = sum(part.log_prob(column) for part, column in zip(parts, columns, strict=True))
    np.testing.assert_allclose(evaluated.log_prob, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evaluated.entropy, sum(part.entropy() for part in parts), rtol=1e-4, atol=1e-5)


def test_categorical_frequencies() -> None:
    rows = outputs(CATEGORICAL, SAMPLES)
    noise = heads.draw_noise(CATEGORICAL, np.random.default_rng(3), SAMPLES)
    action, _ = heads.act(CATEGORICAL, rows, None, noise)
    for column, part in enumerate(rows[:1].split(CATEGORICAL.sizes, 1)):
        expected = torch.softmax(part, 1)[0].numpy()
        found = np.bincount(action[:, column].astype(int), minlength=len(expected)) / SAMPLES
        np.testing.assert_allclose(found, expected, atol=0.005)


def test_bernoulli_frequencies() -> None:
    rows = outputs(BERNOULLI, SAMPLES)
    action, _ = heads.act(
        BERNOULLI, rows, None, heads.draw_noise(BERNOULLI, np.random.default_rng(3), SAMPLES)
    )
    np.testing.assert_allclose(action.mean(0), torch.sigmoid(rows[0]).numpy(), atol=0.005)


def test_gaussian_moments() -> None:
    rows, log_std = outputs(GAUSSIAN, SAMPLES), torch.tensor([-1.0, 0.0, 0.7])
    action, _ = heads.act(
        GAUSSIAN, rows, log_std, heads.draw_noise(GAUSSIAN, np.random.default_rng(3), SAMPLES)
    )
    np.testing.assert_allclose(action.mean(0), rows[0].numpy(), atol=0.02)
    np.testing.assert_allclose(action.std(0), log_std.exp().numpy(), rtol=0.01)


@pytest.mark.parametrize("draw", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_extreme_draws_and_logits_stay_in_range(draw: float) -> None:
    """The largest draw below 1 must not fall off the end of the CDF, however the sum was rounded."""
    spec = ActionSpec("categorical", (15,))
    rows = torch.from_numpy(np.random.default_rng(1).normal(0, 30, (512, 15)).astype(np.float32))
    action, log_prob = heads.act(spec, rows, None, np.full((512, 1), draw, np.float32))
    assert action.min() >= 0 and action.max() <= 14
    assert np.isfinite(log_prob).all()


def test_impossible_actions_are_never_taken() -> None:
    spec = ActionSpec("categorical", (3,))
    rows = torch.tensor([[-200.0, 0.0, -200.0]]).repeat(1000, 1)
    action, _ = heads.act(spec, rows, None, heads.draw_noise(spec, np.random.default_rng(1), 1000))
    assert (action == 1).all()


def test_bernoulli_survives_large_logits() -> None:
    rows = torch.tensor([[-120.0, 0.0, 120.0]])
    with np.errstate(all="raise", under="ignore"):
        action, log_prob = heads.act(BERNOULLI, rows, None, np.full((1, 3), 0.5, np.float32))
    assert action.tolist() == [[0.0, 0.0, 1.0]]
    assert np.isfinite(log_prob).all()


def test_mode() -> None:
    assert heads.mode(CATEGORICAL, torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0, 0.0, 4.0]])).tolist() == [
        [1.0, 2.0]
    ]
    assert heads.mode(BERNOULLI, torch.tensor([[1.0, -1.0, 2.0]])).tolist() == [[1.0, 0.0, 1.0]]
    assert heads.mode(GAUSSIAN, torch.tensor([[1.0, -1.0, 2.0]])).tolist() == [[1.0, -1.0, 2.0]]
