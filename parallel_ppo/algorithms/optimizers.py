"""What is done to whole parameter vectors, by our kernels or by torch: the lanes' gradients are summed, a
step is taken.
"""

import math

from torch import Tensor

from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.kernels import native
from parallel_ppo.settings.schema import TrainingSettings

ADAM_BETAS = (0.9, 0.999)
ADAM_BLOCK = 1 << 16  # parameters: enough for torch's calls to cost little beside the arithmetic


def sum_lanes(lanes: Tensor, into: Tensor, kernels: str) -> float:
    """The sum of rows [L, n] in the order of `tree_sum`; returns the sum of its squares, for the norm."""
    if kernels == "native":
        return native.tree_sum(lanes, into)
    into.copy_(tree_sum(list(lanes)))
    return float(into.double().square().sum())


def step(
    training: TrainingSettings,
    *,
    parameters: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    number: int,
    learning_rate: float,
    gradient_scale: float,
) -> None:
    """Takes the optimizer's step `number` (from 1), in place on flat vectors."""
    vectors = parameters, gradient, first_moment, second_moment
    if training.optimizer == "adam":
        _adam(vectors, number, learning_rate, training.adam_eps, gradient_scale, training.kernels)
    else:
        is_tf = training.optimizer == "rmsprop_tf"
        alpha, epsilon = training.rmsprop_alpha, training.rmsprop_eps
        _rmsprop(vectors, learning_rate, alpha, epsilon, gradient_scale, epsilon_inside=is_tf)


def initial_second_moment(optimizer: str) -> float:
    """TensorFlow's RMSprop starts its running mean of squares at 1, torch's at 0: the first steps differ
    by far.
    """
    return 1.0 if optimizer == "rmsprop_tf" else 0.0


Vectors = tuple[Tensor, Tensor, Tensor, Tensor]  # parameters, gradient, first and second moment


def adam_corrections(number: int) -> tuple[float, float]:
    """Of step `number`: the divisor of the learning rate, and the factor of the second moment's root."""
    beta1, beta2 = ADAM_BETAS
    return 1 - beta1**number, 1 / math.sqrt(1 - beta2**number)


def _adam(
    vectors: Vectors, number: int, learning_rate: float, epsilon: float, gradient_scale: float, kernels: str
) -> None:
    """Block by block, so that a block's six arrays stay in the cache."""
    beta1, beta2 = ADAM_BETAS
    divisor, correction = adam_corrections(number)
    rate = learning_rate / divisor
    if kernels == "native":
        native.adam(*vectors, gradient_scale, beta1, beta2, rate, correction, epsilon)
        return
    for weight, slope, first, second in zip(*(v.split(ADAM_BLOCK) for v in vectors), strict=True):
        scaled = slope * gradient_scale
        first.mul_(beta1).add_(scaled, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
        weight.addcdiv_(first, second.sqrt().mul_(correction).add_(epsilon), value=-rate)


def _rmsprop(
    vectors: Vectors,
    learning_rate: float,
    alpha: float,
    epsilon: float,
    gradient_scale: float,
    *,
    epsilon_inside: bool,
) -> None:
    """`epsilon_inside` the root is TensorFlow's way, outside is torch's."""
    for weight, slope, _, second in zip(*(v.split(ADAM_BLOCK) for v in vectors), strict=True):
        scaled = slope * gradient_scale
        second.mul_(alpha).addcmul_(scaled, scaled, value=1 - alpha)
        divisor = (second + epsilon).sqrt_() if epsilon_inside else second.sqrt().add_(epsilon)
        weight.addcdiv_(scaled, divisor, value=-learning_rate)
