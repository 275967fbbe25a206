"""DrAC, data-regularized actor-critic: a policy and a value that do not change when the image is augmented.

A microbatch's images are evaluated twice, unchanged and augmented, in one batch of twice the size. The algorithm's
loss uses the first half only; the regularizer pulls the outputs of the second half towards those of the first,
which it does not move. It is written for the outputs, so it runs on every network. B samples, K outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parallel_ppo.algorithms.algorithm import Algorithm, Sampled, Statistics, differentiate
from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies.network import Network, Output, OutputGradient


class Divergence(NamedTuple):
    """KL(own policy, augmented policy) and its derivatives in the augmented outputs."""

    kl: Tensor  # [B]
    by_action: Tensor  # [B, K]
    by_log_std: Tensor | None  # [B, K]


def divergence(spec: ActionSpec, own: Output, augmented: Output) -> Divergence:
    if spec.kind == "categorical":
        kl, slopes = torch.zeros_like(own.value), []
        parts = own.action.split(spec.sizes, 1), augmented.action.split(spec.sizes, 1)
        for mine, other in zip(*parts, strict=True):
            log_mine, log_other = mine.log_softmax(1), other.log_softmax(1)
            probability = log_mine.exp()
            kl = kl + (probability * (log_mine - log_other)).sum(1)
            slopes.append(log_other.exp() - probability)
        return Divergence(kl, torch.cat(slopes, 1), None)
    if spec.kind == "bernoulli":
        on = own.action.sigmoid()
        of_on = torch.nn.functional.logsigmoid(own.action) - torch.nn.functional.logsigmoid(augmented.action)
        of_off = of_on - own.action + augmented.action
        kl = (on * of_on + (1 - on) * of_off).sum(1)
        return Divergence(kl, augmented.action.sigmoid() - on, None)
    assert own.log_std is not None
    moved = (augmented.action - own.action) * (-own.log_std).exp()  # both have one deviation
    return Divergence(0.5 * moved.square().sum(1), moved * (-own.log_std).exp(), -moved.square())


def regularized(
    algorithm: Algorithm, network: Network, output: Output, sampled: Sampled
) -> tuple[OutputGradient, Statistics]:
    """The algorithm's loss and the regularizer, differentiated in the outputs of both halves [2 B]."""
    log_std = None if output.log_std is None else output.log_std.detach()
    halves = zip(output.action.detach().chunk(2), output.values.detach().chunk(2), strict=True)
    own, augmented = (Output(action, log_std, values) for action, values in halves)
    gradient, statistics = differentiate(algorithm, network, own, sampled)
    between, error = divergence(sampled.action, own, augmented), augmented.value - own.value
    weight = sampled.training.augmentation_coef / sampled.batch_size
    total = float((between.kl + 0.5 * error.square()).sum())
    by_log_std = gradient.log_std
    if by_log_std is not None and between.by_log_std is not None:
        by_log_std = by_log_std + weight * between.by_log_std.sum(0)
    by_values = torch.zeros_like(gradient.values)
    by_values[:, 0] = weight * error  # only of the rewards' value: curiosity's is not regularized
    both = OutputGradient(
        torch.cat([gradient.action, weight * between.by_action]),
        by_log_std,
        torch.cat([gradient.values, by_values]),
    )
    return both, statistics._replace(loss=statistics.loss + weight * total, augmentation_loss=total)
