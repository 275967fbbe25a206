"""What is done to whole parameter vectors, by our kernels or by torch: the lanes' gradients are summed, Adam takes a step."""

import math

from torch import Tensor

from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.kernels import native

ADAM_BETAS = (0.9, 0.999)
ADAM_BLOCK = 1 << 16  # parameters: enough for torch's calls to cost little beside the arithmetic


def sum_lanes(lanes: Tensor, into: Tensor, kernels: str) -> float:
    """The sum of rows [L, n] in the order of `tree_sum`; returns the sum of its squares, for the norm."""
    if kernels == "native":
        return native.tree_sum(lanes, into)
    into.copy_(tree_sum(list(lanes)))
    return float(into.double().square().sum())


def adam(
    *,
    parameters: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: int,
    learning_rate: float,
    epsilon: float,
    gradient_scale: float,
    kernels: str,
) -> None:
    """In place on flat vectors; torch's block by block, so that a block's six arrays stay in the cache."""
    beta1, beta2 = ADAM_BETAS
    rate = learning_rate / (1 - beta1**step)
    correction = 1 / math.sqrt(1 - beta2**step)
    vectors = parameters, gradient, first_moment, second_moment
    if kernels == "native":
        native.adam(*vectors, gradient_scale, beta1, beta2, rate, correction, epsilon)
        return
    for weight, slope, first, second in zip(*(v.split(ADAM_BLOCK) for v in vectors), strict=True):
        scaled = slope * gradient_scale
        first.mul_(beta1).add_(scaled, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
        weight.addcdiv_(first, second.sqrt().mul_(correction).add_(epsilon), value=-rate)
