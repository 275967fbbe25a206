"""Everything a run must remember between iterations, and the copy of it that makes an iteration
abandonable.

E envs, P parameters. The environments' own states stay in shared memory (two slots, see
`workers/carried.py`).
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from parallel_ppo.algorithms.level_replay import LevelReplay
from parallel_ppo.algorithms.normalisers import (
    EPSILON,
    Moments,
    RewardNormalizer,
    moment_arrays,
    moments_of,
)
from parallel_ppo.algorithms.optimizers import initial_second_moment
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.training.curiosity import make_curiosity_state
from parallel_ppo.workers.carried import Environments, Saved, Snapshot
from parallel_ppo.workers.memory import Memory

RECENT = 100  # episodes that `final_return_mean` and `best` look at


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
        num_envs = self.settings.shape.num_envs
        self.parameters = self.memory.tensor("parameters")
        self.first_moment, self.second_moment = map(self.memory.tensor, ("first_moment", "second_moment"))
        self.second_moment.fill_(initial_second_moment(self.settings.training.optimizer))
        training = self.settings.training
        gamma = training.gamma if training.reward_gamma is None else training.reward_gamma
        self.rewards = RewardNormalizer(num_envs, gamma)
        self.observations = Moments.empty(self.memory.observation_mean.shape)
        self.levels = _level_replay(self.settings.env)
        self.publish_level_chances()
        self.curiosity = make_curiosity_state(self.settings, self.memory)
        self.episode_return = np.zeros(num_envs)
        self.episode_length = np.zeros(num_envs, np.int64)
        self.recent_returns: deque[float] = deque(maxlen=RECENT)
        self.recent_lengths: deque[int] = deque(maxlen=RECENT)

    def publish_observation_scale(self) -> None:
        """What the workers normalise with until the next call."""
        if self.observations.num:
            self.memory.observation_mean[...] = self.observations.mean
            self.memory.observation_scale[...] = 1 / np.sqrt(self.observations.variance + EPSILON)

    def publish_level_chances(self) -> None:
        """What the workers choose levels by until the next call."""
        if self.levels is not None:
            self.memory.level_chances[...] = self.levels.cumulative()

    def publish_version(self, row: int | None = None) -> None:
        """Lets collection act with the parameters and the normalisation of now, from the next iteration
        on.
        """
        shape, memory = self.settings.shape, self.memory
        if row is None:
            if not shape.lag:
                return
            row = (self.counters.iteration + 1) % shape.num_versions
        memory.versions[row] = memory.parameters
        memory.version_mean[row] = memory.observation_mean
        memory.version_scale[row] = memory.observation_scale
        memory.version_level_chances[row] = memory.level_chances

    def publish_first_versions(self) -> None:
        """A run starts with one version only."""
        for row in range(self.settings.shape.num_versions):
            self.publish_version(row)

    # --- snapshots ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copies what the next iteration will change. The slot of this iteration's start is left alone by
        it, so it is only referred to.
        """
        arrays = {
            "parameters": self.memory.parameters[: self.memory.policy_end].copy(),
            "adam.first_moment": self.first_moment.numpy().copy(),
            "adam.second_moment": self.second_moment.numpy().copy(),
            "rewards.running": self.rewards.running.copy(),
            **moment_arrays("rewards", self.rewards.moments),
            **moment_arrays("observations", self.observations),
            "episode.return": self.episode_return.copy(),
            "episode.length": self.episode_length.copy(),
            "recent.returns": np.array(self.recent_returns, np.float64),
            "recent.lengths": np.array(self.recent_lengths, np.int64),
            **({} if self.levels is None else self.levels.arrays()),
            **self.curiosity.arrays(),
            **{name: getattr(self.memory, name).copy() for name in self._version_fields},
        }
        environments = Environments.at(self.memory, self.counters.iteration)
        return Snapshot(vars(self.counters).copy(), arrays, environments)

    def rewind(self, snapshot: Snapshot | Saved) -> None:
        """Back to the start of the iteration; the environments' slot still holds it."""
        arrays = snapshot.arrays
        self.counters = Counters(**snapshot.counters)
        self.memory.parameters[: self.memory.policy_end] = arrays["parameters"]
        self.first_moment.copy_(torch.from_numpy(arrays["adam.first_moment"]))
        self.second_moment.copy_(torch.from_numpy(arrays["adam.second_moment"]))
        self.rewards.running = arrays["rewards.running"].copy()
        self.rewards.moments = moments_of("rewards", arrays)
        self.observations = moments_of("observations", arrays)
        self.episode_return = arrays["episode.return"].copy()
        self.episode_length = arrays["episode.length"].copy()
        self.recent_returns = deque(arrays["recent.returns"].tolist(), maxlen=RECENT)
        self.recent_lengths = deque(arrays["recent.lengths"].tolist(), maxlen=RECENT)
        self.curiosity.rewind(arrays)
        self.publish_observation_scale()
        if self.levels is not None:
            self.levels.restore(arrays)
            self.publish_level_chances()
        for name in self._version_fields:
            getattr(self.memory, name)[...] = arrays[name]

    @property
    def _version_fields(self) -> tuple[str, ...]:
        if not self.settings.shape.num_versions:
            return ()
        chances = () if self.levels is None else ("version_level_chances",)
        return ("versions", "version_mean", "version_scale", *chances)

    def restore(self, saved: Saved) -> None:
        """From a checkpoint."""
        self.rewind(saved)
        iteration = self.counters.iteration
        Environments.at(self.memory, iteration).unpack(saved.environments)
        self.memory.state_stamp[self.memory.slot(iteration)] = iteration


def _level_replay(env: EnvSettings) -> LevelReplay | None:
    if env.level_sampler == "uniform":
        return None
    return LevelReplay(
        first_level=env.start_level, num_levels=env.num_levels,
        temperature=env.plr_temperature, staleness=env.plr_staleness,
    )  # fmt: skip
