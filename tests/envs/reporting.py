"""An environment with a method for its masks, a number and a success in its `info`; and a schedule."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

LIMIT = 30


class Reporting(CartPoleEnv):
    """Where the pole leans far to one side, the cart may not be pushed to the other."""

    def reset(self, **options: Any) -> tuple:
        self.length_so_far = 0
        return super().reset(**options)

    def action_masks(self) -> np.ndarray:
        angle = float(self.state[2])
        return np.array([angle < 0.1, angle > -0.1])

    def step(self, action: int) -> tuple:
        if not self.action_masks()[action]:
            raise ValueError("a forbidden action")
        observation, reward, terminated, _, info = super().step(action)
        self.length_so_far += 1
        is_success = self.length_so_far == LIMIT
        info = {"angle": float(observation[2]), "is_success": is_success}
        return observation, reward, terminated, is_success, info


class Breaking(Reporting):
    """Raises in long episodes."""

    def step(self, action: int) -> tuple:
        if self.length_so_far == LIMIT - 1:
            raise ValueError("it broke")
        return super().step(action)


def rate(left: float) -> float:
    return 1e-4 + 1e-3 * left**2
