"""Every feature keeps its promise to the loop: it learns, a snapshot is final, rewinding restores every byte, and
the same update then gives the same arrays. A state that is not declared is found here.
"""

from typing import Any

import numpy as np
import pytest

from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.memory.table import Rollout, State
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training import update
from parallel_ppo.training.optimizer_steps import Applied, Update
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from tests.conftest import small_settings

VECTOR = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)), 8)
FEATURES: dict[str, tuple[dict[str, Any], str]] = {  # settings, and how the names of its saved arrays begin
    "rewards": ({}, "rewards."),
    "observations": ({"training__normalize_observations": True}, "observations."),
    "episodes": ({}, "episode."),
    "recent episodes": ({}, "recent."),
    "versions": ({"training__lag": 1, "training__normalize_observations": True}, "version"),
    "adaptive rate": ({"training__learning_rate_schedule": "adaptive"}, "schedules."),
    "levels": ({}, "levels."),
    "levels with a lag": ({"training__lag": 1}, "version_level_chances"),
    "rnd": ({"curiosity__kind": "rnd"}, "curiosity."),
    "icm": ({"curiosity__kind": "icm"}, "curiosity.rewards."),
    "ngu": ({"curiosity__kind": "ngu", "curiosity__ngu_memory": 8}, "curiosity.errors."),
}


def made(settings: Settings) -> TrainingState:
    """A run's state with a rollout of random numbers."""
    draws = np.random.default_rng(1)
    memory = Memory(settings, VECTOR, num_flat(Policy(settings, VECTOR)))
    memory.poison()
    state = TrainingState(settings, memory)
    memory.parameters[...] = draws.normal(size=memory.parameters.shape)
    state.begin()
    for one in memory.table.values():
        if one.written == "collect" and one.place == "dense":
            whole = getattr(memory, one.name)
            if one.dtype == "uint8":
                whole[...] = draws.random(whole.shape) < 0.03
            elif one.dtype.startswith("int"):
                whole[...] = draws.integers(0, 6, whole.shape)
            else:
                whole[...] = np.abs(draws.normal(size=whole.shape))
    return state


def all_arrays(state: TrainingState, *kinds: type) -> dict[str, np.ndarray]:
    table = state.memory.table.values()
    return {one.name: getattr(state.memory, one.name).copy() for one in table if one.kind in kinds}


def iterate(state: TrainingState) -> dict[str, float]:
    cluster = Cluster(state.settings.sizes)
    learned = update.learn(state, None, cluster, Schedules(1e-3, 0.2), Timeline())  # type: ignore[arg-type]
    state.finish_episodes()
    return learned.columns


def one_step(this: Update) -> tuple[list[Applied], bool, list[Any]]:
    """In place of the optimizer's: moves the parameters by the targets."""
    state = this.state
    state.parameters += float(state.memory.advantage.sum())
    state.counters.optimizer_steps += 1
    return [Applied(Statistics(*[0.5] * len(Statistics._fields)), 1.0, 1.0, 2e-3)], False, []


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_learns_and_can_be_rewound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, begins = FEATURES[name]
    monkeypatch.setattr(update, "take_steps", one_step)
    settings = small_settings(**flags)
    if "levels" in name:  # no environment is needed for this
        settings = settings.changed("env", level_sampler="plr", num_levels=6)
    state = made(settings)
    snapshot, everything = state.snapshot(), all_arrays(state, State)
    fingerprint = snapshot.sha256()
    columns, after = iterate(state), all_arrays(state, State, Rollout)
    saved = state.memory.saved()
    own = [one for one in saved if one.startswith(begins)]
    assert own and any(not np.array_equal(saved[one], snapshot.arrays[one]) for one in own)
    assert snapshot.sha256() == fingerprint
    state.rewind(snapshot)
    for one, array in all_arrays(state, State).items():
        assert np.array_equal(array, everything[one]), f"{one} is not restored"
    assert iterate(state) == columns
    for one, array in all_arrays(state, State, Rollout).items():
        assert np.array_equal(array, after[one], equal_nan=True), f"{one} differs after the same update"
