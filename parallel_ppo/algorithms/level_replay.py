"""Prioritized level replay: how likely each training level is to be played next. N levels, T steps, E envs.

A level's score is the mean size of the advantage over the steps of an episode within one iteration: how wrong
the value was there. Of several episodes the last one scored counts. Levels are ranked by score; those that were
not played for long get a share by how long.
"""

import numpy as np


class LevelReplay:
    def __init__(self, *, first_level: int, num_levels: int, temperature: float, staleness: float) -> None:
        self.first_level, self.temperature, self.staleness = first_level, temperature, staleness
        self.score = np.zeros(num_levels)
        self.last_played = np.full(num_levels, -1)  # how many episodes had ended by then; -1: never
        self.num_episodes = 0

    def learn(self, *, advantage: np.ndarray, episode_start: np.ndarray, level_seed: np.ndarray) -> None:
        """From an iteration, in order of time. `episode_start` has T + 1 rows; `level_seed` is known where an
        episode ends, and in the last row. What an episode did in earlier iterations does not count: the
        policy has changed since. Unfinished episodes come last: a level that many environments play for long
        would otherwise keep the score that brought them there.
        """
        error_sum, error_steps = np.zeros(advantage.shape[1]), np.zeros(advantage.shape[1])
        last = len(advantage) - 1
        for t, errors in enumerate(np.abs(advantage)):
            error_sum += errors
            error_steps += 1
            ended = episode_start[t + 1].nonzero()[0]
            for env in ended.tolist():
                self.num_episodes += 1
                self._rate(level_seed[t, env], error_sum[env] / error_steps[env])
            error_sum[ended] = error_steps[ended] = 0
        for env in error_steps.nonzero()[0].tolist():
            self._rate(level_seed[last, env], error_sum[env] / error_steps[env])

    def _rate(self, level_seed: int, score: float) -> None:
        level = int(level_seed) - self.first_level
        self.score[level], self.last_played[level] = score, self.num_episodes

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
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.score = arrays["levels.score"].copy()
        self.last_played = arrays["levels.last_played"].copy()
        self.num_episodes = int(arrays["levels.episodes.count"])


def drawn_levels(cumulative: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The levels (from 0) that uniform draws fall on."""
    return np.searchsorted(cumulative, draws, side="right")
