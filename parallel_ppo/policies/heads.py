"""Action heads: from the network's outputs to actions, log-probabilities and entropies.

B samples, A action components, K network outputs. Actions are float32 rows [B, A] whatever their kind.
Noise is drawn beforehand from a keyed generator, so that an action is a pure function of its inputs.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parallel_ppo.envs.contract import ActionSpec


class Evaluated(NamedTuple):
    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]


def num_components(spec: ActionSpec) -> int:
    return len(spec.sizes) if spec.kind == "categorical" else spec.sizes[0]


def num_outputs(spec: ActionSpec) -> int:
    return sum(spec.sizes) if spec.kind == "categorical" else spec.sizes[0]


def draw_noise(spec: ActionSpec, generator: np.random.Generator, *shape: int) -> Tensor:
    full = (*shape, num_components(spec))
    noise = (
        generator.standard_normal(full, np.float32)
        if spec.kind == "gaussian"
        else generator.random(full, np.float32)
    )
    return torch.from_numpy(noise)


def sample(spec: ActionSpec, outputs: Tensor, log_std: Tensor | None, noise: Tensor) -> Tensor:
    """Inverse CDF for discrete actions, mean + std * noise for continuous ones."""
    if spec.kind == "categorical":
        columns = [
            _inverse_cdf(part, noise[:, index]) for index, part in enumerate(outputs.split(spec.sizes, 1))
        ]
        return torch.stack(columns, 1).float()
    if spec.kind == "bernoulli":
        return (noise < torch.sigmoid(outputs)).float()
    assert log_std is not None
    return outputs + log_std.exp() * noise


def _inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    cumulative = functional.softmax(logits, 1).cumsum(1)
    return (cumulative[:, :-1] <= uniform[:, None]).sum(1)


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
    log_prob = (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
    entropy = (log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum().expand(len(outputs))
    return Evaluated(log_prob, entropy)
