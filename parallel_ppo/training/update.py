"""The centralized update: targets, then for each minibatch delegate lanes, sum them, clip, step.

The coordinator alone decides here; the arithmetic of lanes and blocks is done by whoever has a core. T steps, E envs.
"""

import math
from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import ALGORITHMS, minibatches, optimizers
from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.algorithms.normalisers import Moments
from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.exits import NumbersError
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import BLOCK, Memory
from parallel_ppo.workers.pool import Pool, Span
from parallel_ppo.workers.tasks import Gradient, Reduce

REDUCE_ELEMENTS = 1 << 21  # fewer additions than this are not worth a message to a second worker


class Updated(NamedTuple):
    """Learning columns of one iteration, and what the workers did."""

    columns: dict[str, float]
    spans: list[Span]


def scheduled(settings: Settings, *, env_steps: int, wall_time: float) -> Schedules:
    training = settings.training
    if training.schedule_by == "time":
        progress = wall_time / (training.schedule_hours * 3600) if training.schedule_hours else 0.0
    else:
        progress = env_steps / training.schedule_steps if training.schedule_steps else 0.0
    left = max(0.0, 1 - progress)
    return Schedules(
        training.learning_rate * (left if training.learning_rate_schedule == "linear" else 1.0),
        training.clip_range * (left if training.clip_range_schedule == "linear" else 1.0),
    )


def update(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> Updated:
    settings, memory, shape = state.settings, state.memory, state.settings.shape
    training, algorithm, spans = settings.training, ALGORITHMS[settings.training.algorithm], list[Span]()
    timeline.enter("gather")
    cluster.gather_columns(memory, state.counters.iteration)
    timeline.enter("advantages")
    algorithm.targets(memory, state.rewards, training)
    totals, norms, stopped = [], [], False
    for epoch in range(shape.num_epochs):
        timeline.enter("order")
        order = _epoch_order(state, epoch)
        for minibatch in range(shape.num_minibatches):
            timeline.enter("moments")
            rows = order[:, minibatch * shape.slice_samples : (minibatch + 1) * shape.slice_samples]
            scalars = algorithm.scalars(memory, rows.reshape(-1), schedules, training)
            task = Gradient(0, state.counters.iteration, epoch, minibatch, scalars)
            timeline.enter("gradients")
            spans += pool.run(task._replace(lane=lane) for lane in cluster.lanes)
            timeline.enter("reduce")
            spans += pool.run(_reduce_tasks(memory, cluster.reduced_lanes, pool.num_workers))
            timeline.enter("exchange")
            cluster.sum_gradients(memory)
            if cluster.node.size > 1:
                _write_squares(memory, settings)
            timeline.enter("optimizer")
            found = Statistics(*minibatches.tree_sum(list(memory.tensor("lane_statistics"))).tolist())
            if training.target_kl is not None and found.approx_kl / shape.batch_size > training.target_kl:
                stopped = True
                break
            norms.append(_apply(state, found, schedules.learning_rate, epoch, minibatch))
            totals.append(found)
        if stopped:
            break
    timeline.enter("statistics")
    columns = _columns(state, totals, norms, stopped, schedules)
    if training.normalize_observations:
        _learn_observations(state, cluster)
    return Updated(columns, spans)


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


def _reduce_tasks(memory: Memory, lanes: range, num_workers: int) -> list[Reduce]:
    blocks, additions = len(memory.gradient_squares), len(lanes) * memory.gradient.size
    number = max(1, min(num_workers, blocks, additions // REDUCE_ELEMENTS)) if lanes else 0
    return [
        Reduce(index * blocks // number, (index + 1) * blocks // number, lanes.start, lanes.stop)
        for index in range(number)
    ]


def _write_squares(memory: Memory, settings: Settings) -> None:
    """The norm's summands as the workers of a single node write them, after other nodes have added to the sum."""
    for block, values in enumerate(memory.tensor("gradient").split(BLOCK)):
        memory.gradient_squares[block] = optimizers.sum_lanes(
            values.unsqueeze(0), values, settings.training.kernels
        )


def _apply(
    state: TrainingState, found: Statistics, learning_rate: float, epoch: int, minibatch: int
) -> float:
    """Clips by the global norm and takes an Adam step; a non-finite gradient is never applied."""
    norm = math.sqrt(sum(state.memory.gradient_squares.tolist()))
    if not (math.isfinite(norm) and np.isfinite(found).all()):
        raise NumbersError(
            f"the gradient is not finite (iteration {state.counters.iteration}, epoch {epoch}, "
            f"minibatch {minibatch}, {_culprits(state)}); a lower training.learning_rate may help"
        )
    scale = min(1.0, state.settings.training.max_grad_norm / (norm + 1e-6))
    state.counters.adam_steps += 1
    optimizers.adam(
        parameters=state.parameters, gradient=state.memory.tensor("gradient"), first_moment=state.first_moment,
        second_moment=state.second_moment, step=state.counters.adam_steps, learning_rate=learning_rate,
        epsilon=state.settings.training.adam_eps, gradient_scale=scale, kernels=state.settings.training.kernels,
    )  # fmt: skip
    return norm


def _culprits(state: TrainingState) -> str:
    """Whose samples made a gradient that is not finite."""
    shape = state.settings.shape
    for lane, row in enumerate(state.memory.lane_statistics):
        if not np.isfinite(row).all():
            first = lane // len(shape.lane_sizes) * shape.slice_envs
            return f"environments {first} to {first + shape.slice_envs - 1}"
    return "the summed gradient"


def _learn_observations(state: TrainingState, cluster: Cluster) -> None:
    """Slice by slice, in order: the same whoever collected them."""
    shape, memory = state.settings.shape, state.memory
    observation = memory.spec.vectors(memory.observation[:-1])
    found = []
    for index in cluster.slices:
        columns = slice(index * shape.slice_envs, (index + 1) * shape.slice_envs)
        moments = Moments.of(observation[:, columns].reshape(-1, observation.shape[-1]))
        found.append(np.stack([moments.mean, moments.squares]))
    for mean, squares in cluster.gather_slices(np.stack(found)):
        num_samples = float(shape.num_steps * shape.slice_envs)
        state.observations = state.observations.merged(Moments(num_samples, mean, squares))
    state.publish_observation_scale()


def _columns(
    state: TrainingState, totals: list[Statistics], norms: list[float], stopped: bool, schedules: Schedules
) -> dict[str, float]:
    """Means over the minibatches that were applied; the statistics are sums over samples, but for the loss."""
    steps, memory = len(totals), state.memory
    samples = max(1, steps * state.settings.shape.batch_size)
    sums = (
        Statistics(*np.sum(totals, axis=0, initial=0.0).tolist())
        if totals
        else Statistics(0.0, 0.0, 0.0, 0.0)
    )
    return {
        "loss": sums.loss / max(1, steps),
        "policy_loss": sums.policy_loss / samples,
        "value_loss": sums.value_loss / samples,
        "entropy": sums.entropy / samples,
        "approx_kl": sums.approx_kl / samples,
        "clip_frac": sums.clipped / samples,
        "explained_variance": explained_variance(value=memory.value[:-1], target_return=memory.target_return),
        "grad_norm": sum(norms) / max(1, steps),
        "learning_rate": schedules.learning_rate,
        "clip_range": schedules.clip_range,
        "minibatches": steps,
        "kl_stopped": int(stopped),
    }


def explained_variance(*, value: np.ndarray, target_return: np.ndarray) -> float:
    variance = float(np.var(target_return, dtype=np.float64))
    if variance == 0:
        return 0.0
    return 1 - float(np.var(target_return.astype(np.float64) - value)) / variance
