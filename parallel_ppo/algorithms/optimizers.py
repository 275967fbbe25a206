"""Operations on whole parameter vectors, by our kernels or by torch: summing gradients, and optimizer steps."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.kernels import native, numerics
from parallel_ppo.settings.schema import TrainingSettings

ADAM_BETAS = (0.9, 0.999)
ADAM_BLOCK = 1 << 16  # parameters: so many that torch's calls cost little compared to the arithmetic


def sum_microbatches(microbatches: Tensor, into: Tensor, kernels: str) -> float:
    """The sum of rows [L, n] in the order of `tree_sum`; returns the sum of its squares, for the norm."""
    if kernels == "native":
        return native.tree_sum(microbatches, into)
    into.copy_(tree_sum(list(microbatches)))
    return float(into.double().square().sum())


class Vectors(NamedTuple):
    """Flat, and changed in place but for the gradient."""

    parameters: Tensor
    gradient: Tensor
    first_moment: Tensor
    second_moment: Tensor

    def blocks(self) -> "Iterator[Vectors]":
        """So small that a block's six arrays stay in the cache."""
        return map(Vectors, *(vector.split(ADAM_BLOCK) for vector in self))


class Optimizer(NamedTuple):
    step: "Callable[[Vectors, TrainingSettings, int, float, float], None]"  # number from 1, rate, gradient's scale
    initial_second_moment: float = 0.0
    is_native: bool = False  # kernels/steps.c has it too


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
    vectors = Vectors(parameters, gradient, first_moment, second_moment)
    OPTIMIZERS[training.optimizer].step(vectors, training, number, learning_rate, gradient_scale)


def initial_second_moment(optimizer: str) -> float:
    return OPTIMIZERS[optimizer].initial_second_moment


def adam_corrections(number: int) -> tuple[float, float]:
    """The divisor of the learning rate and the factor of the second moment's root in step `number`."""
    beta1, beta2 = ADAM_BETAS
    first, second = numerics.whole_power(beta1, number), numerics.whole_power(beta2, number)
    return 1 - first, 1 / math.sqrt(1 - second)


def _adam(
    vectors: Vectors, training: TrainingSettings, number: int, learning_rate: float, gradient_scale: float
) -> None:
    (beta1, beta2), epsilon = ADAM_BETAS, training.adam_eps
    divisor, correction = adam_corrections(number)
    rate = learning_rate / divisor
    if training.kernels == "native":
        native.adam(*vectors, gradient_scale, beta1, beta2, rate, correction, epsilon)
        return
    for weight, slope, first, second in vectors.blocks():
        scaled = slope * gradient_scale
        first.mul_(beta1).add_(scaled, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
        weight.addcdiv_(first, second.sqrt().mul_(correction).add_(epsilon), value=-rate)


def _adamw(
    vectors: Vectors, training: TrainingSettings, number: int, learning_rate: float, gradient_scale: float
) -> None:
    """The decay does not enter the moments."""
    vectors.parameters.mul_(1 - learning_rate * training.weight_decay)
    _adam(vectors, training, number, learning_rate, gradient_scale)


def _rmsprop(
    vectors: Vectors, training: TrainingSettings, number: int, learning_rate: float, gradient_scale: float
) -> None:
    """torch's adds epsilon outside the root, TensorFlow's inside."""
    alpha, epsilon, is_tf = training.rmsprop_alpha, training.rmsprop_eps, training.optimizer == "rmsprop_tf"
    if training.kernels == "native":
        parameters, gradient, _, second = vectors
        native.rmsprop(parameters, gradient, second, gradient_scale, alpha, learning_rate, epsilon, is_tf)
        return
    for weight, slope, _, second in vectors.blocks():
        scaled = slope * gradient_scale
        second.mul_(alpha).addcmul_(scaled, scaled, value=1 - alpha)
        divisor = (second + epsilon).sqrt_() if is_tf else second.sqrt().add_(epsilon)
        weight.addcdiv_(scaled, divisor, value=-learning_rate)


OPTIMIZERS = {
    "adam": Optimizer(_adam, is_native=True),
    "adamw": Optimizer(_adamw),
    "rmsprop": Optimizer(_rmsprop),
    "rmsprop_tf": Optimizer(_rmsprop, initial_second_moment=1.0),  # the first steps differ by far
}
