"""The flat gradient as the sum of its microbatches, and a step along it. It has two parts: the policy's is summed over
all microbatches, that of curiosity's predictors over the few that train them; each has a norm and a rate. L microbatches,
P parameters of a part.
"""

from typing import NamedTuple

from torch import Tensor

from parallel_ppo.algorithms import optimizers
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import Sizes
from parallel_ppo.workers.memory import Memory


class GradientPart(NamedTuple):
    microbatches: Tensor  # [L, P]
    first: int  # where the part begins in the flat vector: a multiple of BLOCK
    per_slice: int  # microbatches of each slice

    @property
    def end(self) -> int:
        return self.first + self.microbatches.shape[1]


def gradient_parts(memory: Memory, sizes: Sizes) -> list[GradientPart]:
    parts = [GradientPart(memory.tensor("microbatch_gradient"), 0, len(sizes.microbatch_sizes))]
    if sizes.predictor_microbatches:
        microbatches = memory.tensor("predictor_gradient")
        parts.append(GradientPart(microbatches, memory.policy_end, sizes.predictor_microbatches))
    return parts


def sum_blocks(memory: Memory, settings: Settings, blocks: range, microbatches: range) -> None:
    """Some blocks of parameters over the microbatches of some slices, and their squares in float64."""
    gradient, per_slice = memory.tensor("gradient"), len(settings.sizes.microbatch_sizes)
    for part in gradient_parts(memory, settings.sizes):
        first, end = (
            microbatch // per_slice * part.per_slice for microbatch in (microbatches.start, microbatches.stop)
        )
        for block in range(max(blocks.start, part.first // BLOCK), min(blocks.stop, -(-part.end // BLOCK))):
            start, stop = block * BLOCK, min((block + 1) * BLOCK, part.end)
            memory.gradient_squares[block] = optimizers.sum_microbatches(
                part.microbatches[first:end, start - part.first : stop - part.first],
                gradient[start:stop],
                settings.training.kernels,
            )


def write_squares(memory: Memory, settings: Settings) -> None:
    """The norm's summands as `sum_blocks` writes them, of a gradient that other nodes have added to."""
    gradient = memory.tensor("gradient")
    for block in range(len(memory.gradient_squares)):
        span = gradient[block * BLOCK : (block + 1) * BLOCK]
        memory.gradient_squares[block] = optimizers.sum_microbatches(
            span.unsqueeze(0), span, settings.training.kernels
        )


Vectors = tuple[Tensor, ...]  # parameters, first and second moment


class StepNumbers(NamedTuple):
    number: int  # of the optimizer step in the run, from 1
    learning_rate: float  # of the policy
    norm: float
    predictor_norm: float


def step_blocks(
    memory: Memory, settings: Settings, blocks: range, vectors: Vectors, step: StepNumbers
) -> None:
    """Clips by the norm and steps, in place on some blocks of `vectors`."""
    gradient = memory.tensor("gradient")
    numbers = (
        (settings.training.max_grad_norm, step.norm, step.learning_rate),
        (settings.curiosity.max_grad_norm, step.predictor_norm, settings.curiosity.learning_rate),
    )
    parts = gradient_parts(memory, settings.sizes)
    for part, (max_norm, norm, learning_rate) in zip(parts, numbers, strict=False):
        span = slice(max(blocks.start * BLOCK, part.first), min(blocks.stop * BLOCK, part.end))
        if span.start >= span.stop:
            continue
        parameters, first_moment, second_moment = (vector[span] for vector in vectors)
        optimizers.step(
            settings.training,
            parameters=parameters,
            gradient=gradient[span],
            first_moment=first_moment,
            second_moment=second_moment,
            number=step.number,
            learning_rate=learning_rate,
            gradient_scale=min(1.0, max_norm / (norm + 1e-6)),
        )
