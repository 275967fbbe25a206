"""The parts of an algorithm, and how its loss is differentiated. B samples, K outputs.

Plain functions; `ppo.py` is the one to read first. A loss without a written-out derivative is
differentiated by autograd in the network's outputs only, so it runs on every network, our kernels
included.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.kernels import numerics
from parallel_ppo.policies.network import Network, Output, OutputGradient
from parallel_ppo.settings.schema import TrainingSettings

Batch = Mapping[str, Tensor]  # the `sampled` arrays of a rollout, for some samples of a minibatch
ArrayBatch = Mapping[str, np.ndarray]
Scalars = tuple[float, ...]  # what all microbatches of a minibatch must know; each algorithm names its own


class Schedules(NamedTuple):
    """Settings that change during a run, as they are in this iteration."""

    learning_rate: float
    clip_range: float


class Statistics(NamedTuple):
    """Sums over samples, so that microbatches add up to a minibatch. `loss` carries the gradient and is divided
    by the batch already.
    """

    loss: Any  # a Tensor while it is differentiated, a number afterwards; so are all of them
    policy_loss: Any
    value_loss: Any
    entropy: Any
    approx_kl: Any = 0.0
    clipped: Any = 0.0
    augmentation_loss: Any = 0.0  # of DrAC; part of `loss` already
    intrinsic_value_loss: Any = 0.0  # of curiosity, as are the next
    predictor_loss: Any = 0.0
    inverse_loss: Any = 0.0
    forward_loss: Any = 0.0


class Sampled(NamedTuple):
    """Some samples of a minibatch and what their loss depends on besides the network's outputs."""

    batch: Batch
    scalars: Scalars
    action: ActionSpec
    training: TrainingSettings
    batch_size: int  # of the whole minibatch


class Algorithm(NamedTuple):
    targets: Callable[..., None]  # (rollout, reward, training): writes the loss's targets
    scalars: Callable[..., Sequence[Scalars]]  # (rollout, rows, schedules, training), of each minibatch
    loss: Callable[[Output, Sampled], Statistics]
    loss_gradient: Callable[[Output, Sampled], tuple[OutputGradient, Statistics]] | None = None
    revalues: bool = False  # the learner's values and log-probabilities are computed before the targets


def differentiate(
    algorithm: Algorithm, network: Network, output: Output, sampled: Sampled
) -> tuple[OutputGradient, Statistics]:
    """The loss's derivatives in the outputs, and its sums as numbers."""
    if network.takes_loss_gradient and algorithm.loss_gradient is not None:
        return _with_intrinsic_value(output, sampled, *algorithm.loss_gradient(output, sampled))
    with torch.enable_grad():
        action, value = output.action.detach().requires_grad_(), output.value.detach().requires_grad_()
        log_std = None if output.log_std is None else output.log_std.detach().requires_grad_()
        statistics = algorithm.loss(Output(action, log_std, value.unsqueeze(1)), sampled)
        leaves = [action, value] if log_std is None else [action, value, log_std]
        by_action, by_value, *rest = torch.autograd.grad(statistics.loss, leaves, materialize_grads=True)
    gradient = OutputGradient(by_action, rest[0] if rest else None, by_value.unsqueeze(1))
    found = Statistics(
        *(float(number.detach()) if isinstance(number, Tensor) else number for number in statistics)
    )
    return _with_intrinsic_value(output, sampled, gradient, found)


def _with_intrinsic_value(
    output: Output, sampled: Sampled, gradient: OutputGradient, statistics: Statistics
) -> tuple[OutputGradient, Statistics]:
    """Adds half the squared error of curiosity's value, where it has one."""
    if output.values.shape[1] == 1:
        return gradient, statistics
    error = output.values[:, 1].detach() - sampled.batch["intrinsic_return"]
    loss, weight = (
        0.5 * numerics.total(error.square().numpy()),
        sampled.training.value_coef / sampled.batch_size,
    )
    values = torch.stack((gradient.value, error * weight), 1)
    return gradient._replace(values=values), statistics._replace(
        loss=statistics.loss + weight * loss, intrinsic_value_loss=loss
    )
