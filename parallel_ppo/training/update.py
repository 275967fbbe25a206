"""The centralized PPO update: advantages, then for each minibatch delegate lanes, reduce, clip, Adam.

The coordinator alone decides here; the arithmetic of lanes and blocks is done by whoever has a core. T steps, E envs.
"""

import math
from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import optimizers, ppo
from parallel_ppo.algorithms.normalisers import Moments
from parallel_ppo.cluster.gloo import Cluster
from parallel_ppo.exits import NumbersError
from parallel_ppo.records.timeline import Phase, Timeline
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import BLOCK, Memory
from parallel_ppo.workers.pool import Pool, Span
from parallel_ppo.workers.worker import Gradient, Reduce

REDUCE_ELEMENTS = 1 << 21  # fewer additions than this are not worth a message to a second worker


class UpdateStatistics(NamedTuple):
    """Learning columns of one iteration, and where the time went."""

    columns: dict[str, float]
    phases: list[Phase]
    spans: list[Span]


class Schedules(NamedTuple):
    learning_rate: float
    clip_range: float


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


def update(state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules) -> UpdateStatistics:
    settings, memory, shape = state.settings, state.memory, state.settings.shape
    timeline, spans = Timeline(), list[Span]()
    timeline.enter("gather")
    cluster.gather_columns(state)
    timeline.enter("advantages")
    write_advantages(state)
    sums, grad_norm, steps, stopped = np.zeros(len(ppo.LossSums._fields)), 0.0, 0, False
    for epoch in range(shape.num_epochs):
        timeline.enter("order")
        order = _epoch_order(state, epoch)
        for minibatch in range(shape.num_minibatches):
            timeline.enter("moments")
            mean, scale = _advantage_moments(memory, order, minibatch, settings)
            task = Gradient(0, state.counters.iteration, epoch, minibatch, mean, scale, schedules.clip_range)
            timeline.enter("gradients")
            spans += pool.run(task._replace(lane=lane) for lane in cluster.lanes)
            timeline.enter("reduce")
            spans += pool.run(_reduce_tasks(memory, cluster.reduced_lanes, pool.num_workers))
            timeline.enter("exchange")
            cluster.sum_gradients(memory)
            if cluster.node.size > 1:
                _write_squares(memory, settings)
            timeline.enter("optimizer")
            totals = ppo.tree_sum(list(memory.tensor("lane_statistics"))).numpy()
            if (
                settings.training.target_kl is not None
                and totals[4] / shape.batch_size > settings.training.target_kl
            ):
                stopped = True
                break
            grad_norm += _apply(state, totals, schedules.learning_rate, epoch, minibatch)
            sums += totals
            steps += 1
        if stopped:
            break
    timeline.enter("statistics")
    columns = _columns(state, sums, grad_norm, steps, stopped, schedules)
    if settings.training.normalize_observations:
        _learn_observations(state, cluster)
    timeline.leave()
    return UpdateStatistics(columns, timeline.take(), spans)


def write_advantages(state: TrainingState) -> None:
    memory, training = state.memory, state.settings.training
    reward = memory.reward
    if training.normalize_rewards:
        reward = state.rewards.scale(memory.reward, memory.episode_start, training.reward_clip)
    result = ppo.generalized_advantages(
        reward=reward, value=memory.value, episode_start=memory.episode_start, truncated=memory.truncated,
        final_value=memory.final_value, gamma=training.gamma, gae_lambda=training.gae_lambda,
    )  # fmt: skip
    memory.advantage[:], memory.target_return[:] = result


def _epoch_order(state: TrainingState, epoch: int) -> np.ndarray:
    """Rows of the slab in the order in which this epoch visits them, [S, T * slice_envs]."""
    shape = state.settings.shape
    return np.stack([
        ppo.slab_rows(
            ppo.sample_order(seed=state.settings.training.seed, slice_index=index, iteration=state.counters.iteration,
                             epoch=epoch, num_samples=shape.num_steps * shape.slice_envs),
            slice_index=index, slice_envs=shape.slice_envs, num_envs=shape.num_envs,
        )
        for index in range(shape.num_slices)
    ])  # fmt: skip


def _advantage_moments(
    memory: Memory, order: np.ndarray, minibatch: int, settings: Settings
) -> tuple[float, float]:
    """Mean and 1/std over the whole minibatch."""
    if not settings.training.normalize_advantages:
        return 0.0, 1.0
    share = settings.shape.share
    rows = order[:, minibatch * share : (minibatch + 1) * share]
    values = memory.advantage.reshape(-1)[rows.reshape(-1)].astype(np.float64)
    return float(values.mean()), float(1 / (values.std() + 1e-8))


def _reduce_tasks(memory: Memory, lanes: range, num_workers: int) -> list[Reduce]:
    blocks, additions = len(memory.gradient_squares), len(lanes) * memory.gradient.size
    parts = max(1, min(num_workers, blocks, additions // REDUCE_ELEMENTS)) if lanes else 0
    return [
        Reduce(index * blocks // parts, (index + 1) * blocks // parts, lanes.start, lanes.stop)
        for index in range(parts)
    ]


def _write_squares(memory: Memory, settings: Settings) -> None:
    """The norm's parts as the workers of a single node write them, after other nodes have added to the sum."""
    gradient = memory.tensor("gradient")
    for block, part in enumerate(gradient.split(BLOCK)):
        memory.gradient_squares[block] = optimizers.sum_lanes(
            part.unsqueeze(0), part, settings.training.kernels
        )


def _apply(
    state: TrainingState, totals: np.ndarray, learning_rate: float, epoch: int, minibatch: int
) -> float:
    """Clips by the global norm and takes an Adam step; a non-finite gradient is never applied."""
    norm = math.sqrt(sum(state.memory.gradient_squares.tolist()))
    if not (math.isfinite(norm) and np.isfinite(totals).all()):
        lanes = [lane for lane, row in enumerate(state.memory.lane_statistics) if not np.isfinite(row).all()]
        shape = state.settings.shape
        first = lanes[0] // len(shape.lane_sizes) * shape.slice_envs if lanes else 0
        where = f"environments {first} to {first + shape.slice_envs - 1}" if lanes else "the summed gradient"
        raise NumbersError(
            f"the gradient is not finite (iteration {state.counters.iteration}, epoch {epoch}, minibatch {minibatch}, {where}); a lower training.learning_rate may help"
        )
    scale = min(1.0, state.settings.training.max_grad_norm / (norm + 1e-6))
    state.counters.adam_steps += 1
    optimizers.adam(
        parameters=state.parameters, gradient=state.memory.tensor("gradient"), first_moment=state.first_moment,
        second_moment=state.second_moment, step=state.counters.adam_steps, learning_rate=learning_rate,
        epsilon=state.settings.training.adam_eps, gradient_scale=scale, kernels=state.settings.training.kernels,
    )  # fmt: skip
    return norm


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
    state: TrainingState, sums: np.ndarray, grad_norm: float, steps: int, stopped: bool, schedules: Schedules
) -> dict[str, float]:
    samples = max(1, steps * state.settings.shape.batch_size)
    named = dict(zip(ppo.LossSums._fields, sums.tolist(), strict=True))
    return {
        "loss": named["total"] / max(1, steps),
        "policy_loss": named["policy_loss"] / samples,
        "value_loss": named["value_loss"] / samples,
        "entropy": named["entropy"] / samples,
        "approx_kl": named["approx_kl"] / samples,
        "clip_frac": named["clipped"] / samples,
        "explained_variance": ppo.explained_variance(
            value=state.memory.value[:-1], target_return=state.memory.target_return
        ),
        "grad_norm": grad_norm / max(1, steps),
        "learning_rate": schedules.learning_rate,
        "clip_range": schedules.clip_range,
        "minibatches": steps,
        "kl_stopped": int(stopped),
    }
