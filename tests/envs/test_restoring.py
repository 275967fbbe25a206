"""Runs whose environments cannot restore a state."""

import numpy as np

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.envs.families import probe
from parallel_ppo.features.episodes import Episode
from parallel_ppo.memory.snapshots import Environments
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import InlinePool
from parallel_ppo.workers.tasks import COLLECT, Task
from parallel_ppo.workers.worker import Worker
from tests.conftest import small_settings

LENGTH, STEPS = 10, 7
SETTINGS = {
    "env__kwargs": {"max_episode_steps": LENGTH},
    "training__n_steps": STEPS,
    "training__batch_size": 56,
}


def drifting() -> tuple[TrainingState, EnvSpec]:
    settings = small_settings("tests.envs.sample_envs:Drifting-v0", **SETTINGS)
    spec = probe(settings)
    policy = Policy(settings, spec)
    state = TrainingState(settings, Memory(settings, spec, num_flat(policy)))
    bind(policy, state.parameters)
    return state, spec


def opened(state: TrainingState, spec: EnvSpec) -> InlinePool:
    slices = range(state.settings.sizes.num_slices)
    return InlinePool(Worker(state.settings, spec, state.memory), slices, state.counters.iteration)


def collect(state: TrainingState, pool: InlinePool) -> list[Episode]:
    slices = range(state.settings.sizes.num_slices)
    pool.run(Task(COLLECT, index, state.counters.iteration) for index in slices)
    episodes = state.finish_episodes()
    state.counters.iteration += 1
    return episodes


def test_an_episode_that_is_lost_is_not_merged_with_the_next() -> None:
    """Seven steps, a restart that cannot restore, and 14 more: every finished episode still has ten steps."""
    state, spec = drifting()
    episodes, exact = [], []
    for iteration in (0, 1, 2):
        if iteration < 2:
            pool = opened(state, spec)
            exact.append(pool.exact)
        episodes += collect(state, pool)
    assert exact == [True, False]
    assert episodes and {episode.length for episode in episodes} == {LENGTH}


def test_states_match_observations_after_a_restart() -> None:
    """The slot of a slice that was not restored stays unchanged; its new episodes start elsewhere."""
    state, spec = drifting()
    collect(state, opened(state, spec))
    before = {name: array.copy() for name, array in Environments.at(state.memory, 1).pack().items()}
    pool = opened(state, spec)
    after = Environments.at(state.memory, 1).pack()
    assert not pool.exact and all(np.array_equal(before[name], after[name]) for name in before)
    began = [single.observation for env in pool.worker.slices.values() for single in env.singles]
    collect(state, pool)
    rollout = state.memory.rollout(1)
    assert rollout.episode_start[0].all() and np.allclose(rollout.observation[0], began)
