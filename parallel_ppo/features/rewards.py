"""Rewards as the targets use them: scaled, clipped, or unchanged. T steps, E envs."""

import numpy as np

from parallel_ppo.features.moments import EPSILON, Moments
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import State, array, f8
from parallel_ppo.settings.schema import Settings


class RewardState(State):
    reward_running = array("E", f8, saved="rewards.running")
    reward_count = array("", f8, saved="rewards.count", least=0)
    reward_mean = array("", f8, saved="rewards.mean")
    reward_squares = array("", f8, saved="rewards.squares", least=0)


class Rewards:
    def __init__(self, settings: Settings, memory: SharedMemory) -> None:
        own, self.training = memory.of(RewardState), settings.training
        gamma = self.training.gamma if self.training.reward_gamma is None else self.training.reward_gamma
        moments = Moments(own.reward_count, own.reward_mean, own.reward_squares)
        self.normalizer = RewardNormalizer(gamma, own.reward_running, moments)

    def scaled(self, rollout: RolloutBuffer) -> np.ndarray:
        """[T, E]. Divided by the running deviation of the return where that is wanted, and clipped."""
        training = self.training
        if training.normalize_rewards:
            return self.normalizer.scale(rollout.reward, rollout.episode_start, training.reward_clip)
        if training.clip_rewards is not None:
            return np.clip(rollout.reward, -training.clip_rewards, training.clip_rewards)
        return rollout.reward


class RewardNormalizer:
    """Divides rewards by the standard deviation of the discounted return."""

    def __init__(self, gamma: float, running: np.ndarray, moments: Moments) -> None:
        """`running` [E] is the discounted return so far; both are updated in place."""
        self.gamma, self.running, self.moments = gamma, running, moments

    def scale(self, reward: np.ndarray, episode_start: np.ndarray, clip: float) -> np.ndarray:
        """Learns from the whole iteration first, then scales it. `episode_start` has T + 1 rows."""
        returns = np.empty(reward.shape)
        running = np.where(episode_start[0], 0.0, self.running)
        for t in range(len(reward)):
            running = running * self.gamma + reward[t]
            returns[t] = running
            running = np.where(episode_start[t + 1], 0.0, running)
        self.running[...] = running
        self.moments.add(Moments.of(returns.reshape(-1)))
        deviation = np.float32(np.sqrt(self.moments.variance + EPSILON))
        return np.clip(reward / deviation, -clip, clip)
