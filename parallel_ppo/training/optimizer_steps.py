"""The optimizer steps of an update: for each minibatch delegate lanes, sum them, clip, step."""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from parallel_ppo.algorithms import ALGORITHMS, minibatches, optimizers
from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.exits import NumbersError
from parallel_ppo.kernels.steps import GO
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.gradient_parts import sum_blocks, write_squares
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import Gradient, Reduce

REDUCE_ELEMENTS = 1 << 21  # fewer additions than this are not worth handing over


def take_steps(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> "tuple[list[Applied], bool, list[Span]]":
    """The steps that were taken, whether target_kl stopped them, and what the workers did."""
    if pool.steps is not None:
        steps = _steps_by_workers
    else:
        steps = _steps_in_turn if state.settings.shape.num_actors else _steps_together
    return steps(state, pool, cluster, schedules, timeline)


class Applied(NamedTuple):
    """One optimizer step."""

    statistics: Statistics
    norm: float
    predictor_norm: float


def _steps_by_workers(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> tuple[list[Applied], bool, list[Span]]:
    """As `_steps_together`; the workers go from step to step by themselves (`workers/steps.py`)."""
    memory, shape, training = state.memory, state.settings.shape, state.settings.training
    slab, algorithm = memory.slab(state.counters.iteration), ALGORITHMS[training.algorithm]
    for epoch in range(shape.num_epochs):
        timeline.enter("order")
        memory.step_rows[epoch] = _epoch_order(state, epoch)
        timeline.enter("moments")
        first, end = epoch * shape.num_minibatches, (epoch + 1) * shape.num_minibatches
        scalars = algorithm.scalars(
            slab, _minibatch_rows(state, memory.step_rows[epoch]), schedules, training
        )
        memory.step_scalars[first:end, : len(scalars[0])] = scalars
    numbers = range(state.counters.optimizer_steps + 1, state.counters.optimizer_steps + 1 + end)
    memory.step_rates[:] = [optimizers.adam_rates(number, schedules.learning_rate) for number in numbers]
    timeline.enter("gradients")
    spans = pool.take_steps(state.counters.iteration, len(scalars[0]))
    timeline.enter("optimizer")
    applied = list[Applied]()
    for step, (*sums, norm, verdict) in enumerate(memory.step_results.tolist()):
        found = Statistics(*sums)
        if verdict != GO:
            _check_finite(state, found, *divmod(step, shape.num_minibatches))
            return applied, True, spans
        applied.append(Applied(found, norm, 0.0))
        state.counters.optimizer_steps += 1
    return applied, False, spans


def _minibatch_rows(state: TrainingState, order: np.ndarray) -> np.ndarray:
    """[M, B]: the rows of the slab that each minibatch of an epoch holds, slice by slice."""
    shape = state.settings.shape
    used = order[:, : shape.num_minibatches * shape.slice_samples]
    by_slice = used.reshape(shape.num_slices, shape.num_minibatches, shape.slice_samples)
    return by_slice.swapaxes(0, 1).reshape(shape.num_minibatches, -1)


def _steps_together(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> tuple[list[Applied], bool, list[Span]]:
    """Epochs of minibatches, each a step; all slices have their lanes in every minibatch."""
    settings, memory, shape = state.settings, state.memory, state.settings.shape
    training, algorithm = settings.training, ALGORITHMS[settings.training.algorithm]
    slab, applied, spans = memory.slab(state.counters.iteration), list[Applied](), list[Span]()
    for epoch in range(shape.num_epochs):
        timeline.enter("order")
        rows = _minibatch_rows(state, _epoch_order(state, epoch))
        timeline.enter("moments")
        for minibatch, scalars in enumerate(algorithm.scalars(slab, rows, schedules, training)):
            task = Gradient(0, state.counters.iteration, epoch, minibatch, scalars)
            timeline.enter("gradients")
            spans += pool.run_together([task._replace(lane=lane) for lane in cluster.lanes])
            timeline.enter("reduce")
            spans += _reduce(state, pool, cluster.reduced_lanes)
            timeline.enter("exchange")
            cluster.sum_gradients(memory)
            if cluster.node.size > 1:
                write_squares(memory, settings)
            timeline.enter("optimizer")
            found = _summed(memory.tensor("lane_statistics"))
            divergence = found.approx_kl / shape.batch_size
            if training.target_kl is not None and not divergence <= training.target_kl:
                _check_finite(state, found, epoch, minibatch)
                return applied, True, spans
            applied.append(_apply(state, found, schedules.learning_rate, epoch, minibatch))
    return applied, False, spans


def _steps_in_turn(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> tuple[list[Applied], bool, list[Span]]:
    """One step for each actor, in order; it then collects with the parameters of just after its step."""
    settings, memory, shape = state.settings, state.memory, state.settings.shape
    algorithm, iteration = ALGORITHMS[settings.training.algorithm], state.counters.iteration
    timeline.enter("order")
    scalars = algorithm.scalars(memory.slab(iteration), _epoch_order(state, 0), schedules, settings.training)
    per_slice = len(shape.lane_sizes)
    timeline.enter("gradients")
    spans = pool.run(Gradient(lane, iteration, 0, 0, scalars[lane // per_slice]) for lane in cluster.lanes)
    timeline.enter("exchange")
    cluster.gather_lanes(memory)
    timeline.enter("optimizer")
    applied = []
    for actor in range(shape.num_actors):
        lanes = range(actor * per_slice, (actor + 1) * per_slice)
        sum_blocks(memory, settings, range(len(memory.gradient_squares)), lanes)
        found = _summed(memory.tensor("lane_statistics")[lanes.start : lanes.stop])
        applied.append(_apply(state, found, schedules.learning_rate, 0, actor))
        state.versions.keep_actor(actor)
    return applied, False, spans


def _summed(statistics: Tensor) -> Statistics:
    return Statistics(*minibatches.tree_sum(list(statistics)).tolist())


def _epoch_order(state: TrainingState, epoch: int) -> np.ndarray:
    """Rows of the slab in the order in which this epoch visits them, [S, T * slice_envs]."""
    shape = state.settings.shape
    return np.stack([
        minibatches.slab_rows(
            minibatches.sample_order(
                seed=state.settings.training.seed, slice_index=index, iteration=state.counters.iteration,
                epoch=epoch, num_samples=shape.num_steps * shape.slice_envs,
            ),
            slice_index=index, slice_envs=shape.slice_envs, num_envs=shape.num_envs,
        )
        for index in range(shape.num_slices)
    ])  # fmt: skip


def _reduce(state: TrainingState, pool: Pool, lanes: range) -> list[Span]:
    memory = state.memory
    blocks, additions = len(memory.gradient_squares), len(lanes) * memory.gradient.size
    if not additions:
        return []
    if additions < REDUCE_ELEMENTS:
        sum_blocks(memory, state.settings, range(blocks), lanes)
        return []
    number = min(pool.num_workers, blocks, additions // REDUCE_ELEMENTS)
    return pool.run_together(
        [
            Reduce(index * blocks // number, (index + 1) * blocks // number, lanes.start, lanes.stop)
            for index in range(number)
        ]
    )


def _check_finite(state: TrainingState, found: Statistics, epoch: int, minibatch: int) -> tuple[float, float]:
    """The gradient's norm, and that of curiosity's predictors (0 without); NumbersError where a step would
    spoil the parameters.
    """
    squares, end = state.memory.gradient_squares.tolist(), -(-state.memory.policy_end // BLOCK)
    sums = minibatches.plain_sum(squares[:end]), minibatches.plain_sum(squares[end:])
    norm, predictor_norm = (math.sqrt(each) if each >= 0 else math.nan for each in sums)
    if not (math.isfinite(norm + predictor_norm) and np.isfinite(found).all()):
        raise NumbersError(
            f"the gradient is not finite (iteration {state.counters.iteration}, epoch {epoch}, "
            f"minibatch {minibatch}, {_culprits(state)}); a lower training.learning_rate may help"
        )
    return norm, predictor_norm


def _apply(
    state: TrainingState, found: Statistics, learning_rate: float, epoch: int, minibatch: int
) -> Applied:
    """Clips by the norm and takes an optimizer step, curiosity's predictors by their own; a non-finite
    gradient is never applied.
    """
    norm, predictor_norm = _check_finite(state, found, epoch, minibatch)
    training, curiosity, end = state.settings.training, state.settings.curiosity, state.memory.policy_end
    state.counters.optimizer_steps += 1
    _step(state, slice(0, end), learning_rate, training.max_grad_norm / (norm + 1e-6))
    if end < len(state.parameters):
        scale = curiosity.max_grad_norm / (predictor_norm + 1e-6)
        _step(state, slice(end, None), curiosity.learning_rate, scale)
    return Applied(found, norm, predictor_norm)


def _step(state: TrainingState, span: slice, learning_rate: float, scale: float) -> None:
    optimizers.step(
        state.settings.training, parameters=state.parameters[span],
        gradient=state.memory.tensor("gradient")[span], first_moment=state.first_moment[span],
        second_moment=state.second_moment[span], number=state.counters.optimizer_steps,
        learning_rate=learning_rate, gradient_scale=min(1.0, scale),
    )  # fmt: skip


def _culprits(state: TrainingState) -> str:
    """Whose samples made a gradient that is not finite."""
    shape = state.settings.shape
    for lane, row in enumerate(state.memory.lane_statistics):
        if not np.isfinite(row).all():
            first = lane // len(shape.lane_sizes) * shape.slice_envs
            return f"environments {first} to {first + shape.slice_envs - 1}"
    return "the summed gradient"
