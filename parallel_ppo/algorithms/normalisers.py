"""Running moments, merged in a fixed order, and the normalisers built on them."""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations, in float64."""

    num: float
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> "Moments":
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, samples: np.ndarray) -> "Moments":
        """Over the first axis."""
        wide = samples.astype(np.float64)
        mean = wide.mean(0)
        return cls(float(len(wide)), mean, np.square(wide - mean).sum(0))

    def merged(self, other: "Moments") -> "Moments":
        total = self.num + other.num
        if total == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.num / total)
        squares = self.squares + other.squares + np.square(delta) * (self.num * other.num / total)
        return Moments(total, mean, squares)

    @property
    def variance(self) -> np.ndarray:
        return self.squares / max(self.num, 1.0)


def moment_arrays(prefix: str, moments: Moments) -> dict[str, np.ndarray]:
    return {
        f"{prefix}.count": np.array(moments.num),
        f"{prefix}.mean": np.array(moments.mean),
        f"{prefix}.squares": np.array(moments.squares),
    }


def moments_of(prefix: str, arrays: dict[str, np.ndarray]) -> Moments:
    return Moments(
        float(arrays[f"{prefix}.count"]), arrays[f"{prefix}.mean"].copy(), arrays[f"{prefix}.squares"].copy()
    )


EPSILON = 1e-8


class RewardNormalizer:
    """Divides rewards by the standard deviation of the discounted return."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.running = np.zeros(num_envs)  # [E] discounted return so far
        self.moments = Moments.empty()

    def scale(self, reward: np.ndarray, episode_start: np.ndarray, clip: float) -> np.ndarray:
        """Learns from the whole iteration first, then scales it. `episode_start` has T + 1 rows."""
        returns = np.empty(reward.shape)
        self.running = np.where(episode_start[0], 0.0, self.running)
        for t in range(len(reward)):
            self.running = self.running * self.gamma + reward[t]
            returns[t] = self.running
            self.running = np.where(episode_start[t + 1], 0.0, self.running)
        self.moments = self.moments.merged(Moments.of(returns.reshape(-1)))
        return np.clip(reward / np.sqrt(self.moments.variance + EPSILON), -clip, clip).astype(np.float32)


def explained_variance(*, value: np.ndarray, target_return: np.ndarray) -> float:
    variance = float(np.var(target_return, dtype=np.float64))
    if variance == 0:
        return 0.0
    return 1 - float(np.var(target_return.astype(np.float64) - value)) / variance
