"""Intrinsic rewards become advantages. T steps, E envs.

Curiosity does not end with an episode: dying is no way to see less that is new.
"""

import numpy as np

from parallel_ppo.algorithms.ppo import generalized_advantages


def intrinsic_advantages(
    *, reward: np.ndarray, value: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """[T, E]; `value` has one row more than there are steps."""
    nothing = np.zeros_like(reward)
    return generalized_advantages(
        reward=reward, value=value, episode_start=np.zeros_like(value), truncated=nothing,
        final_value=nothing, gamma=gamma, gae_lambda=gae_lambda,
    )  # fmt: skip
