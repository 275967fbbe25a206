"""Proximal policy optimization: all of it, top to bottom. T steps, E environments, B samples, K outputs.

An iteration: workers collect T x E steps; `targets` turns their rewards into advantages and returns. Then
for each epoch and minibatch: `scalars` are the numbers that depend on the whole minibatch; workers run the
network on microbatches of it and compute the derivative of `loss` in the outputs (by autograd, or by
`loss_gradient`, which is faster; a test proves that both agree); the network propagates it to the
parameters; the microbatches are summed, the norm is clipped, the optimizer steps (`training/optimizer_steps.py`). The
dictionary of algorithms is in `algorithms/__init__.py`.
"""

from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.algorithms.algorithm import Algorithm, Sampled, Schedules, Statistics
from parallel_ppo.kernels import numerics
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.policies import head_derivatives, heads
from parallel_ppo.policies.network import Output, OutputGradient
from parallel_ppo.settings.schema import TrainingSettings


def targets(rollout: RolloutBuffer, reward: np.ndarray, training: TrainingSettings) -> None:
    """Writes the advantages and returns of an iteration. `reward` [T, E] is what is to be maximized."""
    rollout.advantage[:] = generalized_advantages(
        reward=reward,
        value=rollout.value,
        episode_start=rollout.episode_start,
        truncated=rollout.truncated,
        final_value=rollout.final_value,
        gamma=training.gamma,
        gae_lambda=training.gae_lambda,
    )
    rollout.target_return[:] = rollout.advantage + rollout.value[:-1]


def generalized_advantages(
    *,
    reward: np.ndarray,
    value: np.ndarray,
    episode_start: np.ndarray,
    truncated: np.ndarray,
    final_value: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """[T, E]. `value` and `episode_start` have one row more than there are steps. A cut episode continues
    with `final_value`.
    """
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
    return advantage


class Scalars(NamedTuple):
    advantage_mean: float
    advantage_scale: float
    clip_range: float


def scalars(
    rollout: RolloutBuffer, rows: np.ndarray, schedules: Schedules, training: TrainingSettings
) -> list[Scalars]:
    """Mean and 1/deviation of the advantages over each whole minibatch. `rows` [M, B] are the samples of M
    minibatches in [T * E].
    """
    if not training.normalize_advantages:
        return [Scalars(0.0, 1.0, schedules.clip_range)] * len(rows)
    values = rollout.advantage.reshape(-1)[rows].astype(np.float64)
    count = values.shape[1]
    mean = numerics.row_sums(values) / count
    variance = numerics.row_sums(np.square(values - mean[:, None])) / count
    means, scales = mean.tolist(), (1 / (np.sqrt(variance) + 1e-8)).tolist()
    return [Scalars(mean, scale, schedules.clip_range) for mean, scale in zip(means, scales, strict=True)]


def loss(output: Output, sampled: Sampled) -> Statistics:
    """The definition: the clipped surrogate, the (clipped) value loss and the entropy bonus."""
    batch, training, now = sampled.batch, sampled.training, Scalars(*sampled.scalars)
    taken = heads.evaluate(sampled.action, output.action, output.log_std, batch["action"])
    advantage = (batch["advantage"] - now.advantage_mean) * now.advantage_scale
    log_ratio = taken.log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - now.clip_range, 1 + now.clip_range)
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    squared = (output.value - batch["target_return"]).square()
    if training.clip_value_loss:
        moved = (output.value - batch["value"]).clamp(-now.clip_range, now.clip_range)
        squared = torch.maximum(squared, (batch["value"] + moved - batch["target_return"]).square())
    policy_loss, value_loss, entropy = -surrogate.sum(), 0.5 * squared.sum(), taken.entropy.sum()
    total = policy_loss + training.value_coef * value_loss - training.entropy_coef * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).sum()
        clipped = ((ratio - 1).abs() > now.clip_range).sum()
    return Statistics(total / sampled.batch_size, policy_loss, value_loss, entropy, approx_kl, clipped)


@np.errstate(over="ignore", invalid="ignore")  # the update finds and reports a loss that is not finite
def loss_gradient(output: Output, sampled: Sampled) -> tuple[OutputGradient, Statistics]:
    """`loss` and its derivative in the outputs, written out."""
    batch = {name: rows.numpy() for name, rows in sampled.batch.items()}
    training, now = sampled.training, Scalars(*sampled.scalars)
    log_std = None if output.log_std is None else output.log_std.numpy()
    head = head_derivatives.differentiate(sampled.action, output.action.numpy(), log_std, batch["action"])
    advantage = (batch["advantage"] - np.float32(now.advantage_mean)) * np.float32(now.advantage_scale)
    log_ratio = head.log_prob - batch["log_prob"]
    ratio = numerics.exp(log_ratio)
    free = ratio * advantage
    bounded = np.clip(ratio, 1 - now.clip_range, 1 + now.clip_range) * advantage
    clip = now.clip_range if training.clip_value_loss else None
    value_loss, value_slope = _value_gradient(
        output.value.numpy(), batch["value"], batch["target_return"], clip
    )
    policy_loss, entropy = -numerics.total(np.minimum(free, bounded)), numerics.total(head.entropy)
    each = np.float32(1 / sampled.batch_size)
    action, by_log_std = head_derivatives.by_outputs(
        head,
        log_std,
        by_log_prob=np.where(free <= bounded, free, np.float32(0)) * -each,
        by_entropy=np.float32(-training.entropy_coef) * each,
    )
    total = policy_loss + training.value_coef * value_loss - training.entropy_coef * entropy
    gradient = OutputGradient(
        torch.from_numpy(action),
        None if by_log_std is None else torch.from_numpy(by_log_std),
        torch.from_numpy(value_slope * (np.float32(training.value_coef) * each)).unsqueeze(1),
    )
    approx_kl = numerics.total(ratio - 1 - log_ratio)
    clipped = float((np.abs(ratio - 1) > now.clip_range).sum())
    sums = Statistics(total / sampled.batch_size, policy_loss, value_loss, entropy, approx_kl, clipped)
    return gradient, sums


def _value_gradient(
    value: np.ndarray, old_value: np.ndarray, target_return: np.ndarray, clip: float | None
) -> tuple[float, np.ndarray]:
    """Half the (clipped) squared error, and its derivative."""
    error = value - target_return
    squared = np.square(error)
    if clip is None:
        return 0.5 * numerics.total(squared), error
    moved = value - old_value
    near = np.clip(moved, -clip, clip)
    near_error = old_value + near - target_return
    near_squared = np.square(near_error)
    near_slope = np.where(near == moved, near_error, np.float32(0))
    is_free = squared >= near_squared
    smaller = numerics.total(np.where(is_free, squared, near_squared))
    return 0.5 * smaller, np.where(is_free, error, near_slope)


def explained_variance(*, value: np.ndarray, target_return: np.ndarray) -> float:
    variance = _variance(target_return.astype(np.float64))
    if variance == 0:
        return 0.0
    return 1 - _variance(target_return.astype(np.float64) - value) / variance


def _variance(values: np.ndarray) -> float:
    return numerics.mean(np.square(values - numerics.mean(values)))


PPO = Algorithm(targets, scalars, loss, loss_gradient)
