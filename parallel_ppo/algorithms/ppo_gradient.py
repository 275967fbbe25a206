"""The loss and its derivative written out, for networks whose backward pass is written out too.

The same function as `heads.evaluate` followed by `ppo.loss_sums`, which stay the definition; a test holds the two together.
In NumPy, because on a few hundred samples the calls cost more than the arithmetic. B samples, A action components, K outputs.
"""

from typing import NamedTuple

import numpy as np

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies.heads import HALF_LOG_TAU


class Batch(NamedTuple):
    """Samples of a minibatch; `advantage` is normalised."""

    action: np.ndarray  # [B, A]
    log_prob: np.ndarray  # [B] when it was taken, as is the next
    value: np.ndarray
    advantage: np.ndarray
    target_return: np.ndarray


class Weights(NamedTuple):
    batch_size: int
    clip_range: float
    value_clip: float | None
    entropy_coef: float
    value_coef: float


class Slopes(NamedTuple):
    """Derivatives of the minibatch's loss, and the sums in the order of `ppo.LossSums`."""

    action: np.ndarray  # [B, K]
    value: np.ndarray  # [B]
    log_std: np.ndarray | None  # [K]
    sums: list[float]


class _Head(NamedTuple):
    log_prob: np.ndarray  # [B]
    entropy: np.ndarray  # [B]
    log_prob_slope: np.ndarray  # [B, K] by the outputs
    entropy_slope: np.ndarray | None  # [B, K]; None where the outputs do not matter


@np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is found, and named, by the update
def loss_gradient(
    *,
    spec: ActionSpec,
    outputs: np.ndarray,
    log_std: np.ndarray | None,
    value: np.ndarray,
    batch: Batch,
    weights: Weights,
) -> Slopes:
    head = _head(spec, outputs, log_std, batch.action)
    share = np.float32(1 / weights.batch_size)
    log_ratio = head.log_prob - batch.log_prob
    ratio = np.exp(log_ratio)
    free = ratio * batch.advantage
    bounded = np.clip(ratio, 1 - weights.clip_range, 1 + weights.clip_range) * batch.advantage
    policy_loss = -float(np.minimum(free, bounded).sum())
    value_loss, value_slope = _value(value, batch, weights)
    entropy = float(head.entropy.sum())
    by_log_prob = np.where(free <= bounded, free, np.float32(0)) * -share
    by_entropy = np.float32(-weights.entropy_coef) * share
    action_slope = by_log_prob[:, None] * head.log_prob_slope
    if head.entropy_slope is not None and weights.entropy_coef:
        action_slope += by_entropy * head.entropy_slope
    log_std_slope = None
    if log_std is not None:
        squares = np.square(head.log_prob_slope * np.exp(log_std)) - 1
        log_std_slope = by_log_prob @ squares + by_entropy * np.float32(len(value))
    total = policy_loss + weights.value_coef * value_loss - weights.entropy_coef * entropy
    sums = [
        total / weights.batch_size, policy_loss, value_loss, entropy, float((ratio - 1 - log_ratio).sum()),
        float((np.abs(ratio - 1) > weights.clip_range).sum()),
    ]  # fmt: skip
    return Slopes(action_slope, value_slope * (np.float32(weights.value_coef) * share), log_std_slope, sums)


def _value(value: np.ndarray, batch: Batch, weights: Weights) -> tuple[float, np.ndarray]:
    """Half the (clipped) squared error, and its derivative."""
    error = value - batch.target_return
    squared = np.square(error)
    if weights.value_clip is None:
        return 0.5 * float(squared.sum()), error
    moved = value - batch.value
    near = np.clip(moved, -weights.value_clip, weights.value_clip)
    near_error = batch.value + near - batch.target_return
    near_squared = np.square(near_error)
    near_slope = np.where(near == moved, near_error, np.float32(0))
    is_free = squared >= near_squared
    return 0.5 * float(np.where(is_free, squared, near_squared).sum()), np.where(is_free, error, near_slope)


def _head(spec: ActionSpec, outputs: np.ndarray, log_std: np.ndarray | None, action: np.ndarray) -> _Head:
    if spec.kind == "categorical":
        parts, start = [], 0
        for component, size in enumerate(spec.sizes):
            parts.append(_categorical(outputs[:, start : start + size], action[:, component].astype(np.intp)))
            start += size
        return parts[0] if len(parts) == 1 else _joined(parts)
    if spec.kind == "bernoulli":
        log_on, log_off = -np.logaddexp(np.float32(0), -outputs), -np.logaddexp(np.float32(0), outputs)
        on = np.exp(log_on)
        log_prob = np.where(action > 0, log_on, log_off).sum(1)
        entropy = -(on * log_on + (1 - on) * log_off).sum(1)
        return _Head(log_prob, entropy, action - on, -outputs * on * (1 - on))
    assert log_std is not None
    inverse = np.exp(-log_std)
    scaled = (action - outputs) * inverse
    log_prob = (-0.5 * np.square(scaled) - (log_std + np.float32(HALF_LOG_TAU))).sum(1)
    entropy = np.full(len(outputs), (log_std + np.float32(0.5 + HALF_LOG_TAU)).sum(), np.float32)
    return _Head(log_prob, entropy, scaled * inverse, None)


def _categorical(logits: np.ndarray, chosen: np.ndarray) -> _Head:
    index = np.arange(len(logits))
    shifted = logits - logits.max(1, keepdims=True)
    probability = np.exp(shifted)
    total = probability.sum(1, keepdims=True)
    probability /= total
    log_probs = shifted - np.log(total)
    entropy = -np.einsum("bk,bk->b", probability, log_probs)
    slope = -probability
    slope[index, chosen] += 1
    return _Head(log_probs[index, chosen], entropy, slope, -probability * (log_probs + entropy[:, None]))


def _joined(parts: list[_Head]) -> _Head:
    return _Head(
        np.sum([part.log_prob for part in parts], axis=0),
        np.sum([part.entropy for part in parts], axis=0),
        np.concatenate([part.log_prob_slope for part in parts], 1),
        np.concatenate([part.entropy_slope for part in parts if part.entropy_slope is not None], 1),
    )
