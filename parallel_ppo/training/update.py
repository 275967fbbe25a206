"""The centralized update: targets, then for each minibatch delegate lanes, sum them, clip, step.

The coordinator alone decides here; the arithmetic of lanes and blocks is done by whoever has a core. T
steps, E envs.
"""

from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.algorithms.normalisers import Moments, explained_variance
from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.optimizer_steps import Applied, take_steps
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import Revalue

NOTHING = Statistics(0.0, 0.0, 0.0, 0.0)


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
    settings, memory, iteration = state.settings, state.memory, state.counters.iteration
    training, slab = settings.training, memory.slab(iteration)
    algorithm, spans = ALGORITHMS[training.algorithm], list[Span]()
    if algorithm.revalues:
        timeline.enter("revalue")
        spans += pool.run(Revalue(index, iteration) for index in cluster.slices)
    timeline.enter("gather")
    cluster.gather_columns(memory, iteration)
    timeline.enter("advantages")
    state.curiosity.scale(slab)
    algorithm.targets(slab, state.rewards, training)
    if state.levels is not None:
        state.levels.learn(
            advantage=slab.advantage, episode_start=slab.episode_start, level_seed=slab.level_seed
        )
        state.publish_level_chances()
    state.curiosity.combine(slab)
    applied, stopped, more = take_steps(state, pool, cluster, schedules, timeline)
    timeline.enter("statistics")
    columns = _columns(state, applied, stopped, schedules)
    if training.normalize_observations:
        _learn_observations(state, cluster)
    state.curiosity.observe(cluster)
    state.publish_version()
    return Updated(columns, spans + more)


def _learn_observations(state: TrainingState, cluster: Cluster) -> None:
    """Slice by slice, in order: the same whoever collected them."""
    shape, memory = state.settings.shape, state.memory
    observation = memory.spec.vectors(memory.slab(state.counters.iteration).observation[:-1])
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
    state: TrainingState, applied: list[Applied], stopped: bool, schedules: Schedules
) -> dict[str, float]:
    """Means over the steps that were taken; the statistics are sums over samples, but for the loss."""
    steps, slab = len(applied), state.memory.slab(state.counters.iteration)
    samples = max(1, steps * state.settings.shape.learned_together)
    sums = Statistics(*np.sum([one.statistics for one in applied], axis=0).tolist()) if applied else NOTHING
    regularisation = {"augmentation_loss": sums.augmentation_loss / samples}
    return {
        "loss": sums.loss / max(1, steps),
        "policy_loss": sums.policy_loss / samples,
        "value_loss": sums.value_loss / samples,
        "entropy": sums.entropy / samples,
        "approx_kl": sums.approx_kl / samples,
        "clip_frac": sums.clipped / samples,
        **({} if state.levels is None else state.levels.columns()),
        **(regularisation if state.settings.training.augmentation != "none" else {}),
        "explained_variance": explained_variance(value=slab.value[:-1], target_return=slab.target_return),
        "grad_norm": plain_sum(one.norm for one in applied) / max(1, steps),
        "learning_rate": schedules.learning_rate,
        "clip_range": schedules.clip_range,
        "policy_lag": state.settings.training.lag,
        "minibatches": steps,
        "kl_stopped": int(stopped),
        **state.curiosity.columns(slab, sums, [one.predictor_norm for one in applied]),
    }
