"""PPO's arithmetic: advantages, the loss, the order of samples. Pure functions; each has a slow twin in the tests.

T steps, E environments, B samples.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.keyed import generator


class Advantages(NamedTuple):
    advantage: np.ndarray  # [T, E]
    target_return: np.ndarray  # [T, E]


def generalized_advantages(
    *,
    reward: np.ndarray,
    value: np.ndarray,
    episode_start: np.ndarray,
    truncated: np.ndarray,
    final_value: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """`value` and `episode_start` have one row more than there are steps. A cut episode continues with `final_value`."""
    num_steps, num_envs = reward.shape
    assert value.shape == episode_start.shape == (num_steps + 1, num_envs)
    assert truncated.shape == final_value.shape == reward.shape
    ends = episode_start[1:].astype(bool)
    next_value = np.where(truncated.astype(bool), final_value, np.where(ends, np.float32(0), value[1:]))
    delta = reward + np.float32(gamma) * next_value - value[:-1]
    carry = np.where(ends, np.float32(0), np.float32(gamma * gae_lambda))
    advantage = np.empty_like(reward)
    running = np.zeros(num_envs, np.float32)
    for t in range(num_steps - 1, -1, -1):
        running = delta[t] + carry[t] * running
        advantage[t] = running
    return Advantages(advantage, advantage + value[:-1])


class LossSums(NamedTuple):
    """Sums over samples, so that lanes add up to a minibatch. `total` carries the gradient and is already divided by the batch."""

    total: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipped: Tensor


def loss_sums(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    old_value: Tensor,
    advantage: Tensor,
    target_return: Tensor,
    batch_size: int,
    clip_range: float,
    value_clip: float | None,
    entropy_coef: float,
    value_coef: float,
) -> LossSums:
    """The clipped surrogate, the (clipped) value loss and the entropy bonus of some samples of a minibatch."""
    assert log_prob.shape == entropy.shape == value.shape == advantage.shape == target_return.shape
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)
    squared = (value - target_return).square()
    if value_clip is not None:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        squared = torch.maximum(squared, (near - target_return).square())
    policy_loss, value_loss, entropy_sum = -surrogate.sum(), 0.5 * squared.sum(), entropy.sum()
    total = (policy_loss + value_coef * value_loss - entropy_coef * entropy_sum) / batch_size
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).sum()
        clipped = ((ratio - 1).abs() > clip_range).sum()
    return LossSums(
        total, policy_loss.detach(), value_loss.detach(), entropy_sum.detach(), approx_kl, clipped
    )


def sample_order(*, seed: int, slice_index: int, iteration: int, epoch: int, num_samples: int) -> np.ndarray:
    """The order in which an epoch visits a slice's samples; minibatch k takes the k-th share of it."""
    return generator(seed, "minibatch", slice_index, iteration, epoch).permutation(num_samples)


def slab_rows(order: np.ndarray, *, slice_index: int, slice_envs: int, num_envs: int) -> np.ndarray:
    """Samples of a slice (step-major) -> rows of the slab viewed as [T * E, ...]."""
    step, env = np.divmod(order, slice_envs)
    return step * num_envs + slice_index * slice_envs + env


def explained_variance(*, value: np.ndarray, target_return: np.ndarray) -> float:
    variance = float(np.var(target_return, dtype=np.float64))
    if variance == 0:
        return 0.0
    return 1 - float(np.var(target_return.astype(np.float64) - value)) / variance


def tree_sum(parts: list[Tensor]) -> Tensor:
    """Adjacent pairs, level by level, an odd last one passes up. Element-wise, so it may be split by range without changing a bit."""
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) & ~1 :]
    return parts[0]
