"""The flat gradient as the sum of its lanes, and a step along it. It has two parts: the policy's is summed over
all lanes, that of curiosity's predictors over the few that train them; each has a norm and a rate. L lanes,
P parameters of a part.
"""

from typing import NamedTuple

from torch import Tensor

from parallel_ppo.algorithms import optimizers
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.settings.schema import Settings, Shape
from parallel_ppo.workers.memory import Memory


class GradientPart(NamedTuple):
    lanes: Tensor  # [L, P]
    first: int  # where the part begins in the flat vector: a multiple of BLOCK
    per_slice: int  # lanes of each slice

    @property
    def end(self) -> int:
        return self.first + self.lanes.shape[1]


def gradient_parts(memory: Memory, shape: Shape) -> list[GradientPart]:
    parts = [GradientPart(memory.tensor("lane_gradient"), 0, len(shape.lane_sizes))]
    if shape.teaching_lanes:
        lanes = memory.tensor("predictor_gradient")
        parts.append(GradientPart(lanes, memory.policy_end, shape.teaching_lanes))
    return parts


def sum_blocks(memory: Memory, settings: Settings, blocks: range, lanes: range) -> None:
    """Some blocks of parameters over the lanes of some slices, and their squares in float64."""
    gradient, per_slice = memory.tensor("gradient"), len(settings.shape.lane_sizes)
    for part in gradient_parts(memory, settings.shape):
        first, end = (lane // per_slice * part.per_slice for lane in (lanes.start, lanes.stop))
        for block in range(max(blocks.start, part.first // BLOCK), min(blocks.stop, -(-part.end // BLOCK))):
            start, stop = block * BLOCK, min((block + 1) * BLOCK, part.end)
            memory.gradient_squares[block] = optimizers.sum_lanes(
                part.lanes[first:end, start - part.first : stop - part.first],
                gradient[start:stop],
                settings.training.kernels,
            )


def write_squares(memory: Memory, settings: Settings) -> None:
    """The norm's summands as `sum_blocks` writes them, of a gradient that other nodes have added to."""
    gradient = memory.tensor("gradient")
    for block in range(len(memory.gradient_squares)):
        span = gradient[block * BLOCK : (block + 1) * BLOCK]
        memory.gradient_squares[block] = optimizers.sum_lanes(
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
    end, policy_end, gradient = blocks.stop * BLOCK, memory.policy_end, memory.tensor("gradient")
    parts = (
        (slice(blocks.start * BLOCK, min(end, policy_end)), step.learning_rate, step.norm, settings.training),
        (
            slice(max(blocks.start * BLOCK, policy_end), end),
            settings.curiosity.learning_rate,
            step.predictor_norm,
            settings.curiosity,
        ),
    )
    for span, learning_rate, norm, limits in parts:
        parameters, first_moment, second_moment = (vector[span] for vector in vectors)
        if len(parameters):
            optimizers.step(
                settings.training, parameters=parameters, gradient=gradient[span], first_moment=first_moment,
                second_moment=second_moment, number=step.number, learning_rate=learning_rate,
                gradient_scale=min(1.0, limits.max_grad_norm / (norm + 1e-6)),
            )  # fmt: skip
