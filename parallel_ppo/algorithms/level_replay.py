"""Prioritized level replay: how likely each training level is to be played next. N levels, T steps, E envs.

A level's score is the mean size of the advantage over the episode that was last finished on it: how wrong the
value was there. Levels are ranked by score; those that were not played for long get a share by how long.
"""

import numpy as np


class LevelReplay:
    def __init__(
        self, *, first_level: int, num_levels: int, num_envs: int, temperature: float, staleness: float
    ) -> None:
        self.first_level, self.temperature, self.staleness = first_level, temperature, staleness
        self.score = np.zeros(num_levels)
        self.last_played = np.full(num_levels, -1)  # as the how-manieth episode; -1: never
        self.num_episodes = 0
        self.error_sum = np.zeros(num_envs)  # [E] of the episodes that are being played
        self.error_steps = np.zeros(num_envs, np.int64)

    def learn(self, *, advantage: np.ndarray, episode_start: np.ndarray, level_seed: np.ndarray) -> None:
        """From an iteration, in order of time. `episode_start` has T + 1 rows."""
        self._forget(episode_start[0].nonzero())
        for t, errors in enumerate(np.abs(advantage)):
            self.error_sum += errors
            self.error_steps += 1
            ended = episode_start[t + 1].nonzero()[0]
            for env in ended.tolist():
                level = int(level_seed[t, env]) - self.first_level
                self.num_episodes += 1
                self.score[level] = self.error_sum[env] / self.error_steps[env]
                self.last_played[level] = self.num_episodes
            self._forget(ended)

    def _forget(self, envs: np.ndarray | tuple[np.ndarray, ...]) -> None:
        self.error_sum[envs] = 0
        self.error_steps[envs] = 0

    @property
    def seen(self) -> np.ndarray:
        return self.last_played >= 0

    def probabilities(self) -> np.ndarray:
        """[N]. A level that was never finished has 1/N; those that were share the rest."""
        seen, probability = self.seen, np.full(len(self.score), 1 / len(self.score))
        num_seen = int(seen.sum())
        if num_seen:
            rank = np.empty(num_seen)
            rank[np.argsort(-self.score[seen], kind="stable")] = np.arange(1, num_seen + 1)
            by_score = np.exp(-np.log(rank) / self.temperature)
            by_age = (self.num_episodes - self.last_played[seen]).astype(np.float64)
            if not by_age.any():
                by_age[:] = 1
            mixed = (1 - self.staleness) * by_score / by_score.sum() + self.staleness * by_age / by_age.sum()
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
            "levels_effective": float(np.exp(-(likely * np.log(likely)).sum())),
        }

    # --- what is saved --------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "levels.score": self.score.copy(),
            "levels.last_played": self.last_played.copy(),
            "levels.episodes.count": np.array(self.num_episodes),
            "levels.error_sum": self.error_sum.copy(),
            "levels.error_steps": self.error_steps.copy(),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.score = arrays["levels.score"].copy()
        self.last_played = arrays["levels.last_played"].copy()
        self.num_episodes = int(arrays["levels.episodes.count"])
        self.error_sum = arrays["levels.error_sum"].copy()
        self.error_steps = arrays["levels.error_steps"].copy()


def drawn_levels(cumulative: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The levels (from 0) that uniform draws fall on."""
    return np.searchsorted(cumulative, draws, side="right")
