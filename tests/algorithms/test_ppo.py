"""PPO's arithmetic against slow twins that are written as the definitions read."""

import math

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import minibatches, ppo
from parallel_ppo.algorithms.algorithm import Sampled, Statistics
from parallel_ppo.algorithms.ppo import explained_variance
from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies.network import Output
from parallel_ppo.settings.schema import Settings


def slow_advantages(reward, value, start, truncated, final_value, gamma, lam):
    """Sum over the future, term by term, per environment."""
    num_steps, num_envs = reward.shape
    result = np.zeros((num_steps, num_envs))
    for env in range(num_envs):
        for t in range(num_steps):
            weight = 1.0
            for k in range(t, num_steps):
                ended = bool(start[k + 1, env])
                following = (
                    final_value[k, env] if truncated[k, env] else (0.0 if ended else value[k + 1, env])
                )
                result[t, env] += weight * (reward[k, env] + gamma * following - value[k, env])
                if ended:
                    break
                weight *= gamma * lam
    return result


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_their_definition(seed: int) -> None:
    draws = np.random.default_rng(seed)
    num_steps, num_envs = 20, 6
    reward, final_value = draws.normal(size=(2, num_steps, num_envs)).astype(np.float32)
    value = draws.normal(size=(num_steps + 1, num_envs)).astype(np.float32)
    start = draws.random((num_steps + 1, num_envs)) < 0.15
    truncated = start[1:] & (draws.random((num_steps, num_envs)) < 0.5)
    got = ppo.generalized_advantages(
        reward=reward,
        value=value,
        episode_start=start,
        truncated=truncated,
        final_value=final_value,
        gamma=0.97,
        gae_lambda=0.9,
    )
    expected = slow_advantages(reward, value, start, truncated, final_value, 0.97, 0.9)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_lambda_one_gives_discounted_returns() -> None:
    reward = np.ones((4, 1), np.float32)
    zeros = np.zeros((4, 1), np.float32)
    start = np.array([[1], [0], [0], [0], [1]])
    got = ppo.generalized_advantages(
        reward=reward,
        value=np.zeros((5, 1), np.float32),
        episode_start=start,
        truncated=zeros,
        final_value=zeros,
        gamma=0.5,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(got[:, 0], [1.875, 1.75, 1.5, 1.0])  # values are 0


def slow_loss(logits, value, batch, mean, scale, clip, clips_value, c_entropy, c_value):
    """Sample by sample, in float64."""
    total = 0.0
    for i, row in enumerate(logits):
        probability = np.exp(row) / np.exp(row).sum()
        log_prob = np.log(probability[int(batch["action"][i, 0])])
        entropy = -(probability * np.log(probability)).sum()
        advantage = (batch["advantage"][i] - mean) * scale
        ratio = np.exp(log_prob - batch["log_prob"][i])
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        policy = -min(ratio * advantage, clipped * advantage)
        target, old_value = batch["target_return"][i], batch["value"][i]
        squared = (value[i] - target) ** 2
        if clips_value:
            moved = min(max(value[i] - old_value, -clip), clip)
            squared = max(squared, (old_value + moved - target) ** 2)
        total += policy + c_value * 0.5 * squared - c_entropy * entropy
    return total


def made_up_batch(num_samples: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    logits, value = draws.normal(size=(num_samples, 4)), draws.normal(size=num_samples)
    names = ("log_prob", "value", "advantage", "target_return")
    batch = {name: draws.normal(size=num_samples) * 0.5 for name in names}
    batch["log_prob"] -= 1.3
    return batch | {"action": draws.integers(0, 4, (num_samples, 1))}, logits, value


def loss_of(batch: dict, logits: np.ndarray, value: np.ndarray, clips_value: bool, size: int) -> Statistics:
    training = Settings().changed("training", clip_value_loss=clips_value).training
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    sampled = Sampled(tensors, (0.1, 0.9, 0.2), ActionSpec("categorical", (4,)), training, size)
    return ppo.loss(Output(torch.from_numpy(logits), None, torch.from_numpy(value).unsqueeze(1)), sampled)


@pytest.mark.parametrize("clips_value", [False, True])
def test_loss_equals_its_definition(clips_value: bool) -> None:
    batch, logits, value = made_up_batch(50)
    expected = slow_loss(logits, value, batch, 0.1, 0.9, 0.2, clips_value, 0.01, 0.5)
    assert float(loss_of(batch, logits, value, clips_value, 200).loss) == pytest.approx(expected / 200)


def test_microbatches_add_up_to_the_minibatch() -> None:
    batch, logits, value = made_up_batch(64)
    whole = loss_of(batch, logits, value, True, 64)
    microbatches = [
        loss_of({k: v[i : i + 16] for k, v in batch.items()}, logits[i : i + 16], value[i : i + 16], True, 64)
        for i in range(0, 64, 16)
    ]
    for field in whole._fields:
        total = sum(float(getattr(microbatch, field)) for microbatch in microbatches)
        assert float(getattr(whole, field)) == pytest.approx(total)


def test_sample_order_visits_every_row_of_a_slice_once() -> None:
    order = minibatches.sample_order(seed=1, slice_index=2, iteration=3, epoch=0, num_samples=32)
    rows = minibatches.rollout_rows(order, slice_index=2, slice_envs=4, num_envs=16)
    steps, envs = np.divmod(np.sort(rows), 16)
    assert len(set(rows)) == 32
    assert set(envs) == {8, 9, 10, 11}
    assert set(steps) == set(range(8))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_tree_sum_takes_adjacent_pairs(count: int) -> None:
    def slow(parts):
        if len(parts) == 1:
            return parts[0]
        level = [(parts[i] + parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        return slow(level + ([parts[-1]] if len(parts) % 2 else []))

    parts = list(torch.randn(count, 1000, generator=torch.Generator().manual_seed(count)) * 1e3)
    assert torch.equal(minibatches.tree_sum(parts), slow(parts))
    split = torch.cat(
        [
            minibatches.tree_sum([part[:300] for part in parts]),
            minibatches.tree_sum([part[300:] for part in parts]),
        ]
    )
    assert torch.equal(split, minibatches.tree_sum(parts)), "splitting by range changed a bit"


def test_explained_variance() -> None:
    target = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert explained_variance(value=target, target_return=target) == 1
    assert explained_variance(value=np.full_like(target, 2.5), target_return=target) == pytest.approx(0)
    assert explained_variance(value=target, target_return=np.ones_like(target)) == 0


def test_a_plain_sum_rounds_on_every_version_of_python() -> None:
    assert minibatches.plain_sum([1.0, 1e100, 1.0, -1e100]) == 0.0
    assert math.isnan(minibatches.plain_sum([1.0, math.nan])) and minibatches.plain_sum([]) == 0.0
