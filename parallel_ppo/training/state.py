"""Everything a run must remember between iterations, and the copy of it that makes an iteration
abandonable.

What is remembered follows from the declared arrays (`memory/table.py`). The environments' own states stay in
shared memory, in slots (`memory/snapshots.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from parallel_ppo.algorithms.optimizers import initial_second_moment
from parallel_ppo.features.episodes import Episode
from parallel_ppo.features.features import Features
from parallel_ppo.memory.snapshots import Environments, Saved, Snapshot
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.memory import Memory


@dataclass
class Counters:
    """Plain numbers; JSON in a checkpoint."""

    iteration: int = 0
    env_steps: int = 0
    optimizer_steps: int = 0
    episodes: int = 0
    wall_time: float = 0.0
    worker_restarts: int = 0
    bit_exact: bool = True
    best_return: float | None = None


class TrainingState(Features):
    def __init__(self, settings: Settings, memory: Memory) -> None:
        super().__init__(settings, memory.spec, memory)
        self.settings, self.memory, self.counters = settings, memory, Counters()
        self.ordered = -1  # the iteration whose samples `step_rows` has
        self.parameters = memory.tensor("parameters")
        self.first_moment, self.second_moment = memory.tensor("first_moment"), memory.tensor("second_moment")
        self.second_moment.fill_(initial_second_moment(settings.training.optimizer))
        self.publish()

    def begin(self, initial: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """The first iteration of a run, with initial parameters of the policy. `initial` replaces arrays."""
        saved = self.memory.saved()
        for name, array in initial.items():
            saved[name][tuple(map(slice, array.shape))] = array
        self.publish()
        if self.curiosity is not None:
            self.curiosity.draw(self.memory.parameters[self.memory.policy_end :])
        self.versions.begin()

    def finish_episodes(self) -> list[Episode]:
        counters = self.counters
        rollout = self.memory.rollout(counters.iteration)
        found = self.episodes.finish(rollout, counters.iteration, counters.env_steps)
        counters.episodes += len(found)
        return found

    # --- snapshots ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copies what the next iteration will change. The slot of this iteration's start is left alone by
        it, so it is only referred to.
        """
        arrays = {name: view.copy() for name, view in self.memory.saved().items()}
        environments = Environments.at(self.memory, self.counters.iteration)
        return Snapshot(vars(self.counters).copy(), arrays, environments)

    def rewind(self, snapshot: Snapshot | Saved) -> None:
        """Back to the start of the iteration; the environments' slot still holds it."""
        self.counters = Counters(**snapshot.counters)
        self.memory.restore(snapshot.arrays)
        self.publish()

    def restore(self, saved: Saved) -> None:
        """From a checkpoint."""
        self.rewind(saved)
        iteration = self.counters.iteration
        Environments.at(self.memory, iteration).unpack(saved.environments)
        self.memory.state_stamp[self.memory.slot(iteration)] = iteration
