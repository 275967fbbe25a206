"""Prioritized level replay: how likely each training level is to be played next. N levels, T steps, E envs.

A level's score is the mean size of the advantage over the steps of an episode within one iteration: how wrong
the value was there. Of several episodes the last one scored counts. Levels are ranked by score; those that were
not played for long get a share by how long.
"""

from typing import cast

import numpy as np

from parallel_ppo.envs.contract import EnvSpec, LevelEnv, SliceEnv
from parallel_ppo.kernels import numerics
from parallel_ppo.keyed import generator
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import Axes, State, array, f8, i8
from parallel_ppo.settings.schema import EnvSettings, Settings


class LevelState(State):
    level_score = array("levels", f8, saved="levels.score")
    level_played = array("levels", i8, saved="levels.last_played", initial=-1)
    level_episodes = array("", i8, saved="levels.episodes.count", least=0)
    level_chances = array("levels", f8, versioned="version_level_chances")  # published

    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return settings.env.level_sampler != "uniform"

    @classmethod
    def axes(cls, settings: Settings, spec: EnvSpec) -> Axes:
        return {"levels": settings.env.num_levels}


class LevelReplay:
    """The coordinator's half."""

    def __init__(self, env: EnvSettings, own: LevelState) -> None:
        self.env, self.own = env, own
        self.score, self.last_played = own.level_score, own.level_played  # [N]; -1: never

    def learn(self, rollout: RolloutBuffer) -> None:
        """From an iteration, in order of time. `episode_start` has T + 1 rows; `level_seed` is known where an
        episode ends, and in the last row. What an episode did in earlier iterations does not count: the
        policy has changed since. Unfinished episodes come last: a level that many environments play for long
        would otherwise keep the score that brought them there.
        """
        advantage, episode_start, level_seed = rollout.advantage, rollout.episode_start, rollout.level_seed
        error_sum, error_steps = np.zeros(advantage.shape[1]), np.zeros(advantage.shape[1])
        last = len(advantage) - 1
        for t, errors in enumerate(np.abs(advantage)):
            error_sum += errors
            error_steps += 1
            ended = episode_start[t + 1].nonzero()[0]
            for env in ended.tolist():
                self.own.level_episodes += 1
                self._rate(level_seed[t, env], error_sum[env] / error_steps[env])
            error_sum[ended] = error_steps[ended] = 0
        for env in error_steps.nonzero()[0].tolist():
            self._rate(level_seed[last, env], error_sum[env] / error_steps[env])

    def _rate(self, level_seed: int, score: float) -> None:
        level = int(level_seed) - self.env.start_level
        self.score[level], self.last_played[level] = score, self.num_episodes

    @property
    def num_episodes(self) -> int:
        """The number of ended episodes; `last_played` is one of these numbers."""
        return int(self.own.level_episodes)

    @property
    def seen(self) -> np.ndarray:
        return self.last_played >= 0

    def probabilities(self) -> np.ndarray:
        """[N]. A level that was never played has 1/N; those that were share the rest."""
        seen, probability = self.seen, np.full(len(self.score), 1 / len(self.score))
        num_seen = int(seen.sum())
        if num_seen:
            rank = np.empty(num_seen)
            rank[np.argsort(-self.score[seen], kind="stable")] = np.arange(1, num_seen + 1)
            by_score = numerics.exp(-numerics.log(rank) / self.env.plr_temperature)
            by_age = (self.num_episodes - self.last_played[seen]).astype(np.float64)
            if not by_age.any():
                by_age[:] = 1
            mixed = (1 - self.env.plr_staleness) * by_score / numerics.total(
                by_score
            ) + self.env.plr_staleness * by_age / numerics.total(by_age)
            probability[seen] = mixed * (num_seen / len(self.score))
        return probability

    def cumulative(self) -> np.ndarray:
        """[N], ending with 1: a uniform draw falls into a level's interval."""
        summed = np.cumsum(self.probabilities())
        return summed / summed[-1]

    def columns(self) -> dict[str, float]:
        """For the metrics: levels with a score, and how many equally likely ones the choice amounts to."""
        probability = self.probabilities()
        likely = probability[probability > 0]
        return {
            "levels_seen": int(self.seen.sum()),
            "levels_effective": float(
                numerics.exp(np.array([-numerics.total(likely * numerics.log(likely))]))[0]
            ),
        }

    def publish(self) -> None:
        """The chances by which workers choose levels."""
        self.own.level_chances[...] = self.cumulative()


def drawn_levels(cumulative: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The levels (from 0) that uniform draws fall on."""
    return np.searchsorted(cumulative, draws, side="right")


class LevelsInWorker:
    """The worker's half: which levels the environments of a slice play next.

    Procgen opens the next level within the step that ends an episode, so the choice is written into its state
    in advance: for all environments at the start of an iteration, and again for each that has opened an episode
    since. So every level is chosen with the scores of the iteration in which it is opened.
    """

    def __init__(self, settings: Settings, memory: SharedMemory) -> None:
        self.settings, self.memory = settings, memory

    def before_step(
        self, env: SliceEnv, slice_index: int, iteration: int, step: int, start: np.ndarray
    ) -> None:
        """`start` [n]: which environments open an episode with this observation."""
        chosen = range(len(start)) if step == 0 else start.nonzero()[0].tolist()
        if not chosen:
            return
        draws = generator(self.settings.training.seed, "level", slice_index, iteration, step)
        chances = self.memory.acting("level_chances", slice_index, iteration)
        levels, first = drawn_levels(chances, draws.random(len(start))), self.settings.env.start_level
        cast(LevelEnv, env).set_next_levels({index: first + int(levels[index]) for index in chosen})

    def after_steps(self, env: SliceEnv, rollout: RolloutBuffer, columns: slice) -> None:
        """Writes the levels of unfinished episodes into the last row, so that they get a score too."""
        ended, last = rollout.episode_start[-1, columns], rollout.level_seed[-1, columns]
        rollout.level_seed[-1, columns] = np.where(ended, last, cast(LevelEnv, env).playing_levels())
