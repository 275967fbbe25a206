"""The optimizer steps of an update: for each minibatch delegate microbatches, add them up, clip, step.

Workers take all steps of an update by themselves (`workers/optimizer_steps.py`). A3C, whose actors step in turn,
and a machine on which no C library can be compiled use messages instead: the coordinator adds up and steps.
"""

import math
from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import ALGORITHMS, minibatches, optimizers
from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.exits import NumbersError
from parallel_ppo.features.adaptive_rate import adapted
from parallel_ppo.kernels.steps import GO, NOT_FINITE, STOPPED
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.gradient_parts import StepNumbers, step_blocks, sum_blocks, write_squares
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.tasks import GRADIENT, Microbatch, Span, Task


class Applied(NamedTuple):
    """One optimizer step."""

    statistics: Statistics
    norm: float
    predictor_norm: float
    learning_rate: float


class Update(NamedTuple):
    """Everything that the optimizer steps of one iteration need."""

    state: TrainingState
    pool: Pool
    cluster: Cluster
    schedules: Schedules
    timeline: Timeline


def take_steps(update: Update) -> tuple[list[Applied], bool, list[Span]]:
    """The steps that were taken, whether target_kl stopped them, and what the workers did."""
    state, num_scalars = update.state, _write_plan(update)
    by = _steps_by_coordinator if update.pool.steps is None else _steps_by_workers
    spans = by(update, num_scalars)
    update.timeline.enter("optimizer")
    applied = list[Applied]()
    for step, (*sums, norm, predictor_norm, rate, verdict) in enumerate(state.memory.step_results.tolist()):
        found = Statistics(*sums)
        if verdict != GO:
            if not np.isfinite([*sums, norm, predictor_norm]).all():
                raise NumbersError(_not_finite(state, step))
            return applied, True, spans
        applied.append(Applied(found, norm, predictor_norm, rate))
        state.counters.optimizer_steps += 1
    return applied, False, spans


# --- the plan -----------------------------------------------------------------------------------------------


def _write_plan(update: Update) -> int:
    """The samples, scalars and rates of every step; returns how many scalars the algorithm has."""
    update.timeline.enter("order")
    write_order(update.state)
    update.timeline.enter("moments")
    state = update.state
    memory, sizes, training = state.memory, state.settings.sizes, state.settings.training
    rollout, algorithm = memory.rollout(state.counters.iteration), ALGORITHMS[training.algorithm]
    per_epoch, num_scalars = sizes.num_optimizer_steps // sizes.num_epochs, 0
    for epoch in range(sizes.num_epochs):
        rows = memory.step_rows[epoch]
        if not sizes.num_actors:
            rows = _minibatch_rows(state, rows)
        scalars = algorithm.scalars(rollout, rows, update.schedules, training)
        num_scalars = len(scalars[0])
        memory.step_scalars[epoch * per_epoch : (epoch + 1) * per_epoch, :num_scalars] = scalars
    first = state.counters.optimizer_steps + 1
    numbers = range(first, first + sizes.num_optimizer_steps)
    memory.step_rates[:] = [optimizers.adam_corrections(number) for number in numbers]
    return num_scalars


def write_order(state: TrainingState) -> None:
    """The samples of every step. They depend on no sample, so this is done while the workers collect."""
    if state.ordered != state.counters.iteration:
        for epoch in range(state.settings.sizes.num_epochs):
            state.memory.step_rows[epoch] = epoch_order(state, epoch)
        state.ordered = state.counters.iteration


def epoch_order(state: TrainingState, epoch: int) -> np.ndarray:
    """Rows of the rollout in the order in which this epoch visits them, [S, T * slice_envs]."""
    sizes = state.settings.sizes
    return np.stack(
        [
            minibatches.rollout_rows(
                minibatches.sample_order(
                    seed=state.settings.training.seed,
                    slice_index=index,
                    iteration=state.counters.iteration,
                    epoch=epoch,
                    num_samples=sizes.num_steps * sizes.slice_envs // sizes.sequence_length,
                ),
                slice_index=index,
                slice_envs=sizes.slice_envs,
                num_envs=sizes.num_envs,
                length=sizes.sequence_length,
            )
            for index in range(sizes.num_slices)
        ]
    )


def _minibatch_rows(state: TrainingState, order: np.ndarray) -> np.ndarray:
    """[M, B]: the rows of the rollout that each minibatch of an epoch holds, slice by slice."""
    sizes = state.settings.sizes
    used = order[:, : sizes.num_minibatches * sizes.slice_samples]
    by_slice = used.reshape(sizes.num_slices, sizes.num_minibatches, sizes.slice_samples)
    return by_slice.swapaxes(0, 1).reshape(sizes.num_minibatches, -1)


# --- the steps ----------------------------------------------------------------------------------------------


def _steps_by_workers(update: Update, num_scalars: int) -> list[Span]:
    state, pool, cluster, schedules, timeline = update
    assert pool.steps is not None

    def exchange() -> None:
        timeline.enter("exchange")
        _exchange(state, cluster)
        timeline.enter("gradients")

    timeline.enter("gradients")
    task = pool.steps.open(
        state.counters.iteration,
        num_scalars=num_scalars,
        sums_microbatches=bool(cluster.reduced_microbatches),
        steps_before=state.counters.optimizer_steps,
        learning_rate=schedules.learning_rate,
    )
    return pool.take_steps(task, exchange)


def _exchange(state: TrainingState, cluster: Cluster) -> None:
    cluster.sum_gradients(state.memory)
    write_squares(state.memory, state.settings)


def _steps_by_coordinator(update: Update, num_scalars: int) -> list[Span]:
    """Gradients are messages. The actors of A3C compute theirs at once, then step one after the other; an actor
    collects with the parameters of just after its step.
    """
    state, pool, cluster, schedules, timeline = update
    memory, settings, sizes = state.memory, state.settings, state.settings.sizes
    iteration, spans = state.counters.iteration, list[Span]()
    per_slice, everything = len(sizes.microbatch_sizes), range(len(memory.gradient_squares))
    vectors = state.parameters, state.first_moment, state.second_moment
    memory.step_results[:, -1] = np.nan
    for step in range(sizes.num_optimizer_steps):
        microbatches = (
            range(step * per_slice, (step + 1) * per_slice)
            if sizes.num_actors
            else cluster.reduced_microbatches
        )
        if step == 0 or not sizes.num_actors:
            timeline.enter("gradients")
            microbatch = Microbatch(step, num_scalars)
            spans += pool.run(
                Task(GRADIENT, number, iteration, microbatch) for number in cluster.microbatches
            )
        if step == 0 and sizes.num_actors:
            timeline.enter("exchange")
            cluster.gather_microbatches(memory)
        timeline.enter("reduce")
        if microbatches:
            sum_blocks(memory, settings, everything, microbatches)
        if cluster.node.size > 1 and not sizes.num_actors:
            timeline.enter("exchange")
            _exchange(state, cluster)
        timeline.enter("optimizer")
        rate = memory.step_results[step - 1, -2] if step else schedules.learning_rate
        judged = microbatches if sizes.num_actors else range(sizes.num_microbatches)
        memory.step_results[step] = _judged(state, judged, float(rate), is_first=step == 0)
        *_, norm, predictor_norm, rate, verdict = memory.step_results[step].tolist()
        if verdict != GO:
            return spans
        number = state.counters.optimizer_steps + step + 1
        numbers = StepNumbers(number, rate, norm, predictor_norm)
        step_blocks(memory, settings, everything, vectors, numbers)
        if sizes.num_actors:
            state.versions.keep_actor(step)
    return spans


def _judged(state: TrainingState, microbatches: range, rate: float, *, is_first: bool) -> list[float]:
    """Computes a row of results like `steps_judge` of kernels/steps.c, after a step with `rate`. A3C has no target_kl."""
    memory, training, sizes = state.memory, state.settings.training, state.settings.sizes
    statistics = memory.tensor("microbatch_statistics")[microbatches.start : microbatches.stop]
    sums = minibatches.tree_sum(list(statistics)).tolist()
    squares, end = memory.gradient_squares.tolist(), -(-memory.policy_end // BLOCK)
    totals = minibatches.plain_sum(squares[:end]), minibatches.plain_sum(squares[end:])
    norms = [math.sqrt(total) if total >= 0 else math.nan for total in totals]
    divergence = Statistics(*sums).approx_kl / sizes.batch_size
    if training.learning_rate_schedule == "adaptive" and not is_first:
        rate = adapted(training, rate, divergence)
    target = None if sizes.num_actors else training.target_kl
    if target is not None and not divergence <= target:
        return [*sums, *norms, rate, STOPPED]
    return [*sums, *norms, rate, GO if np.isfinite([*sums, *norms]).all() else NOT_FINITE]


def _not_finite(state: TrainingState, step: int) -> str:
    sizes = state.settings.sizes
    epoch, minibatch = (0, step) if sizes.num_actors else divmod(step, sizes.num_minibatches)
    return (
        f"the gradient is not finite (iteration {state.counters.iteration}, epoch {epoch}, "
        f"minibatch {minibatch}, {_culprits(state)}); a lower training.learning_rate may help"
    )


def _culprits(state: TrainingState) -> str:
    """The environments whose samples made a gradient that is not finite."""
    sizes = state.settings.sizes
    for microbatch, row in enumerate(state.memory.microbatch_statistics):
        if not np.isfinite(row).all():
            first = microbatch // len(sizes.microbatch_sizes) * sizes.slice_envs
            return f"environments {first} to {first + sizes.slice_envs - 1}"
    return "the summed gradient"
