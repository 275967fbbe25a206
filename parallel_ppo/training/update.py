"""The update of an iteration, in order: targets, optimizer steps, and what the features learn.

T steps, E envs.
"""

from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.algorithms.ppo import explained_variance
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.optimizer_steps import Applied, Update, take_steps
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.tasks import REVALUE, Span, Task

NOTHING = Statistics(0.0, 0.0, 0.0, 0.0)


class Learned(NamedTuple):
    """Learning columns of one iteration, and what the workers did."""

    columns: dict[str, float]
    spans: list[Span]


def learn(
    state: TrainingState, pool: Pool, cluster: Cluster, schedules: Schedules, timeline: Timeline
) -> Learned:
    memory, iteration = state.memory, state.counters.iteration
    training, rollout = state.settings.training, memory.rollout(iteration)
    algorithm, spans = ALGORITHMS[training.algorithm], list[Span]()
    if algorithm.revalues:
        timeline.enter("revalue")
        spans += pool.run(Task(REVALUE, index, iteration) for index in cluster.slices)
    timeline.enter("gather")
    cluster.gather_columns(memory, iteration)
    timeline.enter("advantages")
    reward = state.rewards.scaled(rollout)
    if state.curiosity is not None:
        reward = state.curiosity.with_bonus(reward, rollout)
    algorithm.targets(rollout, reward, training)
    if state.levels is not None:  # before curiosity: levels are rated by the environment's rewards
        state.levels.learn(rollout)
    if state.curiosity is not None:
        state.curiosity.add_advantages(rollout)
    if state.adaptive is not None:
        schedules = schedules._replace(learning_rate=state.adaptive.rate)
    applied, stopped, more = take_steps(Update(state, pool, cluster, schedules, timeline))
    if state.adaptive is not None and applied:
        state.adaptive.learn(applied[-1].learning_rate)
    timeline.enter("statistics")
    columns = _columns(state, applied, stopped, schedules)
    state.observations.learn(rollout, cluster)
    if state.curiosity is not None:
        state.curiosity.learn(rollout, cluster)
    state.publish()
    state.versions.keep(iteration + 1)
    return Learned(columns, spans + more)


def _columns(
    state: TrainingState, applied: list[Applied], stopped: bool, schedules: Schedules
) -> dict[str, float]:
    """Means over the steps that were taken; the statistics are sums over samples, but for the loss."""
    steps, rollout = len(applied), state.memory.rollout(state.counters.iteration)
    samples = max(1, steps * state.settings.sizes.learned_together)
    sums = Statistics(*np.sum([one.statistics for one in applied], axis=0).tolist()) if applied else NOTHING
    norms = [one.predictor_norm for one in applied]
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
        "explained_variance": explained_variance(
            value=rollout.value[:-1], target_return=rollout.target_return
        ),
        "grad_norm": plain_sum(one.norm for one in applied) / max(1, steps),
        "learning_rate": schedules.learning_rate,
        "clip_range": schedules.clip_range,
        "policy_lag": state.settings.training.lag,
        "minibatches": steps,
        "kl_stopped": int(stopped),
        **({} if state.curiosity is None else state.curiosity.columns(rollout, sums, norms)),
    }
