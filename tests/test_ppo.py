"""PPO's arithmetic against slow twins that are written as the definitions read."""

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import ppo


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
    np.testing.assert_allclose(got.advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.target_return, expected + value[:-1], rtol=1e-4, atol=1e-5)


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
    np.testing.assert_allclose(got.target_return[:, 0], [1.875, 1.75, 1.5, 1.0])


def slow_loss(
    log_prob,
    entropy,
    value,
    old_log_prob,
    old_value,
    advantage,
    target,
    batch,
    clip,
    value_clip,
    c_entropy,
    c_value,
):
    total = 0.0
    for i in range(len(log_prob)):
        ratio = np.exp(log_prob[i] - old_log_prob[i])
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        policy = -min(ratio * advantage[i], clipped * advantage[i])
        squared = (value[i] - target[i]) ** 2
        if value_clip is not None:
            moved = min(max(value[i] - old_value[i], -value_clip), value_clip)
            squared = max(squared, (old_value[i] + moved - target[i]) ** 2)
        total += policy + c_value * 0.5 * squared - c_entropy * entropy[i]
    return total / batch


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_loss_equals_its_definition(value_clip: float | None) -> None:
    draws = np.random.default_rng(3)
    names = ["log_prob", "entropy", "value", "old_log_prob", "old_value", "advantage", "target_return"]
    arrays = [draws.normal(size=50) * 0.5 for _ in names]
    sums = ppo.loss_sums(
        **{name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)},
        batch_size=200, clip_range=0.2, value_clip=value_clip, entropy_coef=0.01, value_coef=0.5,
    )  # fmt: skip
    expected = slow_loss(*arrays, 200, 0.2, value_clip, 0.01, 0.5)
    assert float(sums.total) == pytest.approx(expected, rel=1e-12)
    ratio = np.exp(arrays[0] - arrays[3])
    assert float(sums.clipped) == np.sum(np.abs(ratio - 1) > 0.2)
    assert float(sums.approx_kl) == pytest.approx(np.sum(ratio - 1 - (arrays[0] - arrays[3])))


def test_lanes_add_up_to_the_minibatch() -> None:
    draws = torch.Generator().manual_seed(0)
    names = ["log_prob", "entropy", "value", "old_log_prob", "old_value", "advantage", "target_return"]
    arrays = {name: torch.randn(64, generator=draws, dtype=torch.float64) for name in names}
    options = {
        "batch_size": 64,
        "clip_range": 0.2,
        "value_clip": 0.2,
        "entropy_coef": 0.01,
        "value_coef": 0.5,
    }
    whole = ppo.loss_sums(**arrays, **options)
    lanes = [
        ppo.loss_sums(**{k: v[i : i + 16] for k, v in arrays.items()}, **options) for i in range(0, 64, 16)
    ]
    for field in whole._fields:
        assert float(getattr(whole, field)) == pytest.approx(
            sum(float(getattr(lane, field)) for lane in lanes)
        )


def test_sample_order_visits_every_row_of_a_slice_once() -> None:
    order = ppo.sample_order(seed=1, slice_index=2, iteration=3, epoch=0, num_samples=32)
    rows = ppo.slab_rows(order, slice_index=2, slice_envs=4, num_envs=16)
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
    assert torch.equal(ppo.tree_sum(parts), slow(parts))
    split = torch.cat(
        [ppo.tree_sum([part[:300] for part in parts]), ppo.tree_sum([part[300:] for part in parts])]
    )
    assert torch.equal(split, ppo.tree_sum(parts)), "splitting by range changed a bit"


def test_explained_variance() -> None:
    target = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert ppo.explained_variance(value=target, target_return=target) == 1
    assert ppo.explained_variance(value=np.full_like(target, 2.5), target_return=target) == pytest.approx(0)
    assert ppo.explained_variance(value=target, target_return=np.ones_like(target)) == 0
