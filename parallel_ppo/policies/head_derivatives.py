"""`heads.evaluate` with its derivatives written out; a test compares the two.

In NumPy, because calls cost more than arithmetic on a few hundred samples. B samples, K outputs.
"""

from typing import NamedTuple

import numpy as np

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.kernels import numerics
from parallel_ppo.policies.heads import HALF_LOG_TAU


class HeadDerivatives(NamedTuple):
    log_prob: np.ndarray  # [B]
    entropy: np.ndarray  # [B]
    log_prob_by_output: np.ndarray  # [B, K]
    entropy_by_output: np.ndarray | None  # [B, K]; None if the outputs do not matter


def differentiate(
    spec: ActionSpec, outputs: np.ndarray, log_std: np.ndarray | None, action: np.ndarray
) -> HeadDerivatives:
    if spec.kind == "categorical":
        components, start = [], 0
        for component, size in enumerate(spec.sizes):
            chosen = action[:, component].astype(np.intp)
            components.append(_categorical(outputs[:, start : start + size], chosen))
            start += size
        return components[0] if len(components) == 1 else _joined(components)
    if spec.kind == "bernoulli":
        log_on, log_off = -numerics.softplus(-outputs), -numerics.softplus(outputs)
        on = numerics.exp(log_on)
        log_prob = numerics.row_sums(np.where(action > 0, log_on, log_off))
        entropy = -numerics.row_sums(on * log_on + (1 - on) * log_off)
        return HeadDerivatives(log_prob, entropy, action - on, -outputs * on * (1 - on))
    assert log_std is not None
    inverse = numerics.exp(-log_std)
    scaled = (action - outputs) * inverse
    log_prob = numerics.row_sums(-0.5 * np.square(scaled) - (log_std + np.float32(HALF_LOG_TAU)))
    entropy = numerics.row_sums((log_std + np.float32(0.5 + HALF_LOG_TAU))[None])
    return HeadDerivatives(log_prob, np.repeat(entropy, len(outputs)), scaled * inverse, None)


def _categorical(logits: np.ndarray, chosen: np.ndarray) -> HeadDerivatives:
    index = np.arange(len(logits))
    shifted = logits - logits.max(1, keepdims=True)
    probability = numerics.exp(shifted)
    total = numerics.row_sums(probability)
    probability /= total[:, None]
    log_probs = shifted - numerics.log(total)[:, None]
    entropy = -numerics.row_sums(probability * log_probs)
    slope = -probability
    slope[index, chosen] += 1
    by_output = -probability * (log_probs + entropy[:, None])
    return HeadDerivatives(log_probs[index, chosen], entropy, slope, by_output)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """[B, K]"""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - numerics.log(numerics.row_sums(numerics.exp(shifted)))[:, None]


def _joined(components: list[HeadDerivatives]) -> HeadDerivatives:
    entropies = [each.entropy_by_output for each in components if each.entropy_by_output is not None]
    return HeadDerivatives(
        numerics.column_sums(np.stack([each.log_prob for each in components])),
        numerics.column_sums(np.stack([each.entropy for each in components])),
        np.concatenate([each.log_prob_by_output for each in components], 1),
        np.concatenate(entropies, 1),
    )


def by_outputs(
    head: HeadDerivatives,
    log_std: np.ndarray | None,
    *,
    by_log_prob: np.ndarray,
    by_entropy: np.float32,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Derivatives by the outputs [B, K] and by `log_std` [K], from those by log-probability and entropy."""
    action = by_log_prob[:, None] * head.log_prob_by_output
    if head.entropy_by_output is not None and by_entropy:
        action += by_entropy * head.entropy_by_output
    if log_std is None:
        return action, None
    squares = np.square(head.log_prob_by_output * numerics.exp(log_std)) - 1
    by_log_std = numerics.column_sums(by_log_prob[:, None] * squares)
    return action, by_log_std + by_entropy * np.float32(len(head.log_prob))
