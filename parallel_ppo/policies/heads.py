"""Action heads: from the network's outputs to actions, log-probabilities and entropies.

B samples, A action components, K network outputs. Actions of every kind are float32 rows [B, A]. Noise comes from
a keyed generator, so an action is a pure function of its inputs.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.kernels import numerics
from parallel_ppo.policies.network import Acted, Output

HALF_LOG_TAU = 0.9189385332046727  # log(2 pi) / 2
NEVER = -1e8  # the logit of a masked choice: its probability and all its derivatives are exactly 0


class Evaluated(NamedTuple):
    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]


def num_components(spec: ActionSpec) -> int:
    return len(spec.sizes) if spec.kind == "categorical" else spec.sizes[0]


def num_outputs(spec: ActionSpec) -> int:
    return sum(spec.sizes) if spec.kind == "categorical" else spec.sizes[0]


def masked(output: Output, mask: Tensor | None) -> Output:
    """Only choices with a nonzero mask [B, K] keep their logits. Derivatives pass through unchanged."""
    return output if mask is None else output._replace(action=output.action.masked_fill(mask == 0, NEVER))


def draw_noise(spec: ActionSpec, generator: np.random.Generator, *shape: int) -> np.ndarray:
    full = (*shape, num_components(spec))
    if spec.kind == "gaussian":
        return numerics.standard_normal(generator, full, np.float32)
    return generator.random(full, np.float32)


def acted(spec: ActionSpec, output: Output, noise: np.ndarray) -> Acted:
    return Acted(*act(spec, output.action, output.log_std, noise), output.values.numpy())


def act(
    spec: ActionSpec, outputs: Tensor, log_std: Tensor | None, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Actions [B, A] and log-probabilities [B], in NumPy because calls cost more than arithmetic on few rows."""
    rows = outputs.numpy()
    if spec.kind == "categorical":
        return _act_categorical(spec, rows, draws)
    if spec.kind == "bernoulli":
        action = (2 * draws - 1 < numerics.tanh(0.5 * rows)).astype(np.float32)  # a sigmoid without overflow
        return action, -numerics.row_sums(numerics.softplus((1 - 2 * action) * rows))
    assert log_std is not None
    scale = log_std.detach().numpy()
    log_prob = numerics.row_sums(-0.5 * np.square(draws) - scale - np.float32(HALF_LOG_TAU))
    return rows + numerics.exp(scale) * draws, log_prob


def _act_categorical(spec: ActionSpec, rows: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse CDF, component by component."""
    action, log_prob = np.empty_like(draws), np.zeros(len(rows), np.float32)
    index, start = np.arange(len(rows)), 0
    for component, size in enumerate(spec.sizes):
        part = rows[:, start : start + size]
        part = part - part.max(1, keepdims=True)
        cumulative = numerics.exp(part).cumsum(1)
        chosen = (cumulative[:, :-1] <= draws[:, component, None] * cumulative[:, -1:]).sum(1)
        action[:, component] = chosen
        log_prob += part[index, chosen] - numerics.log(cumulative[:, -1])
        start += size
    return action, log_prob


def mode(spec: ActionSpec, outputs: Tensor) -> Tensor:
    """The most likely action, for deterministic evaluation."""
    if spec.kind == "categorical":
        return torch.stack([part.argmax(1) for part in outputs.split(spec.sizes, 1)], 1).float()
    return (outputs > 0).float() if spec.kind == "bernoulli" else outputs


def evaluate(spec: ActionSpec, outputs: Tensor, log_std: Tensor | None, action: Tensor) -> Evaluated:
    assert action.shape == (outputs.shape[0], num_components(spec))
    if spec.kind == "categorical":
        log_prob, entropy = outputs.new_zeros(len(outputs)), outputs.new_zeros(len(outputs))
        for index, part in enumerate(outputs.split(spec.sizes, 1)):
            log_probs = functional.log_softmax(part, 1)
            log_prob = log_prob + log_probs.gather(1, action[:, index : index + 1].long()).squeeze(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(1)
        return Evaluated(log_prob, entropy)
    if spec.kind == "bernoulli":
        log_on, log_off = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
        probability = torch.sigmoid(outputs)
        log_prob = (action * log_on + (1 - action) * log_off).sum(1)
        return Evaluated(log_prob, -(probability * log_on + (1 - probability) * log_off).sum(1))
    assert log_std is not None
    scaled = (action - outputs) / log_std.exp()
    log_prob = (-0.5 * scaled.square() - log_std - HALF_LOG_TAU).sum(1)
    entropy = (log_std + 0.5 + HALF_LOG_TAU).sum().expand(len(outputs))
    return Evaluated(log_prob, entropy)
