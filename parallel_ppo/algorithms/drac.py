"""DrAC, data-regularized actor-critic: a policy and a value that do not change when the image is augmented.

A microbatch's images are evaluated twice, unchanged and augmented, in one batch of twice the size. The algorithm's
loss uses the first half only; the regularizer pulls the outputs of the second half towards those of the first,
which it does not move. It is written for the outputs, so it runs on every network. B samples, K outputs.
"""

from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.algorithms.algorithm import Algorithm, Sampled, Statistics, differentiate
from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.kernels import numerics
from parallel_ppo.policies.head_derivatives import log_softmax
from parallel_ppo.policies.network import Network, Output, OutputGradient


class Divergence(NamedTuple):
    """KL(own policy, augmented policy) and its derivatives in the augmented outputs."""

    kl: np.ndarray  # [B]
    by_action: np.ndarray  # [B, K]
    by_log_std: np.ndarray | None  # [B, K]


def divergence(spec: ActionSpec, own: Output, augmented: Output) -> Divergence:
    here, there = own.action.numpy(), augmented.action.numpy()
    if spec.kind == "categorical":
        ends = np.cumsum(spec.sizes)[:-1]
        kl, slopes = np.zeros(len(here), np.float32), []
        for mine, other in zip(np.split(here, ends, 1), np.split(there, ends, 1), strict=True):
            log_mine, log_other = log_softmax(mine), log_softmax(other)
            probability = numerics.exp(log_mine)
            kl = kl + numerics.row_sums(probability * (log_mine - log_other))
            slopes.append(numerics.exp(log_other) - probability)
        return Divergence(kl, np.concatenate(slopes, 1), None)
    if spec.kind == "bernoulli":
        on, other_on = numerics.exp(-numerics.softplus(-here)), numerics.exp(-numerics.softplus(-there))
        of_on = numerics.softplus(-there) - numerics.softplus(-here)
        of_off = of_on - here + there
        return Divergence(numerics.row_sums(on * of_on + (1 - on) * of_off), other_on - on, None)
    assert own.log_std is not None
    inverse = numerics.exp(-own.log_std.numpy())  # both have one deviation
    moved = (there - here) * inverse
    return Divergence(0.5 * numerics.row_sums(np.square(moved)), moved * inverse, -np.square(moved))


def regularized(
    algorithm: Algorithm, network: Network, output: Output, sampled: Sampled
) -> tuple[OutputGradient, Statistics]:
    """The algorithm's loss and the regularizer, differentiated in the outputs of both halves [2 B]."""
    log_std = None if output.log_std is None else output.log_std.detach()
    halves = zip(output.action.detach().chunk(2), output.values.detach().chunk(2), strict=True)
    own, augmented = (Output(action, log_std, values) for action, values in halves)
    gradient, statistics = differentiate(algorithm, network, own, sampled)
    between, error = divergence(sampled.action, own, augmented), (augmented.value - own.value).detach()
    weight = sampled.training.augmentation_coef / sampled.batch_size
    total = numerics.total(between.kl + 0.5 * np.square(error.numpy()))
    by_log_std = gradient.log_std
    if by_log_std is not None and between.by_log_std is not None:
        by_log_std = by_log_std + weight * torch.from_numpy(numerics.column_sums(between.by_log_std))
    by_values = torch.zeros_like(gradient.values)
    by_values[:, 0] = weight * error  # only of the rewards' value: curiosity's is not regularized
    both = OutputGradient(
        torch.cat([gradient.action, weight * torch.from_numpy(between.by_action)]),
        by_log_std,
        torch.cat([gradient.values, by_values]),
    )
    return both, statistics._replace(loss=statistics.loss + weight * total, augmentation_loss=total)
