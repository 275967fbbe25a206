"""Action heads against torch.distributions."""

import numpy as np
import pytest
import torch

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies import heads

CATEGORICAL = ActionSpec("categorical", (5,))
MULTIPLE = ActionSpec("categorical", (3, 4))
BERNOULLI = ActionSpec("bernoulli", (6,))
GAUSSIAN = ActionSpec("gaussian", (3,))


def outputs(spec: ActionSpec, count: int = 32) -> tuple[torch.Tensor, torch.Tensor | None]:
    draws = torch.Generator().manual_seed(0)
    log_std = torch.tensor([-0.5, 0.0, 0.7]) if spec.kind == "gaussian" else None
    return torch.randn(count, heads.num_outputs(spec), generator=draws), log_std


def reference(spec: ActionSpec, out: torch.Tensor, log_std: torch.Tensor | None, action: torch.Tensor):
    if spec.kind == "categorical":
        parts = [torch.distributions.Categorical(logits=part) for part in out.split(spec.sizes, 1)]
        return sum(d.log_prob(action[:, i]) for i, d in enumerate(parts)), sum(d.entropy() for d in parts)
    d = (
        torch.distributions.Bernoulli(logits=out)
        if spec.kind == "bernoulli"
        else torch.distributions.Normal(out, log_std.exp())
    )
    return d.log_prob(action).sum(1), d.entropy().sum(1)


@pytest.mark.parametrize("spec", [CATEGORICAL, MULTIPLE, BERNOULLI, GAUSSIAN])
def test_log_prob_and_entropy(spec: ActionSpec) -> None:
    out, log_std = outputs(spec)
    noise = heads.draw_noise(spec, np.random.default_rng(0), 32)
    action = heads.sample(spec, out, log_std, noise)
    assert action.shape == (32, heads.num_components(spec))
    got = heads.evaluate(spec, out, log_std, action)
    log_prob, entropy = reference(spec, out, log_std, action)
    torch.testing.assert_close(got.log_prob, log_prob)
    torch.testing.assert_close(got.entropy, entropy)


def test_categorical_samples_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]]).expand(200_000, 5)
    noise = heads.draw_noise(CATEGORICAL, np.random.default_rng(1), 200_000)
    counts = torch.bincount(heads.sample(CATEGORICAL, logits, None, noise)[:, 0].long(), minlength=5)
    torch.testing.assert_close(counts / 200_000, torch.softmax(logits[0], 0), atol=0.005, rtol=0)


def test_a_draw_of_almost_one_stays_in_range() -> None:
    logits = torch.zeros(4, 5)
    action = heads.sample(CATEGORICAL, logits, None, torch.full((4, 1), np.float32(1) - np.float32(2**-24)))
    assert action.max() <= 4


def test_mode() -> None:
    assert heads.mode(CATEGORICAL, torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0]])).tolist() == [[1.0]]
    assert heads.mode(BERNOULLI, torch.tensor([[1.0, -1.0, 2.0, -2.0, 3.0, -3.0]])).tolist() == [
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    ]
