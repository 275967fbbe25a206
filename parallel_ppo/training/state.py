"""Everything a run must remember between iterations, and the copy of it that makes an iteration
abandonable.

What is remembered follows from the declared arrays (`memory/table.py`). The environments' own states stay in
shared memory, in slots (`memory/snapshots.py`).
"""

from dataclasses import dataclass, field

from parallel_ppo.algorithms.optimizers import initial_second_moment
from parallel_ppo.features.adaptive_rate import AdaptiveRate, RateState
from parallel_ppo.features.episodes import Episode, Episodes
from parallel_ppo.features.levels import LevelReplay, LevelState
from parallel_ppo.features.observations import Observations
from parallel_ppo.features.rewards import Rewards
from parallel_ppo.features.versions import Versions
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


@dataclass
class TrainingState:
    settings: Settings
    memory: Memory
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        settings, memory = self.settings, self.memory
        self.parameters = memory.tensor("parameters")
        self.first_moment, self.second_moment = map(memory.tensor, ("first_moment", "second_moment"))
        self.second_moment.fill_(initial_second_moment(settings.training.optimizer))
        self.rewards = Rewards(settings, memory)
        self.observations = Observations(settings, memory.spec, memory)
        self.episodes = Episodes(memory)
        self.versions = Versions(settings.sizes, memory)
        self.levels = (
            LevelReplay(settings.env, memory.of(LevelState)) if LevelState.is_needed(settings) else None
        )
        self.curiosity = None
        if settings.curiosity.is_curious:
            from parallel_ppo.features.curiosity.state import Curiosity  # only runs that need it load it

            self.curiosity = Curiosity(settings, memory.spec, memory)
        self.adaptive = AdaptiveRate(settings, memory) if RateState.is_needed(settings) else None
        self.publish()

    def publish(self) -> None:
        """Writes every array that is derived from the state and read by workers."""
        for feature in (self.observations, self.levels, self.curiosity):
            if feature is not None:
                feature.publish()

    def begin(self) -> None:
        """The first iteration of a run, with initial parameters of the policy."""
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
