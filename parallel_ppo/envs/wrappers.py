"""Wrappers for `env.wrappers`."""

from typing import Any, SupportsFloat

import gymnasium


class UprightPendulum(gymnasium.Wrapper):
    """Pendulum with a sparse reward: 1 for each step in which the rod is upright and almost still, else 0."""

    def __init__(self, env: gymnasium.Env, angle: float = 0.3, speed: float = 1.5) -> None:
        super().__init__(env)
        self.least_cosine, self.speed = 1 - angle**2 / 2, speed

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        cosine, _, speed = observation
        is_upright = cosine >= self.least_cosine and abs(speed) <= self.speed
        return observation, float(is_upright), terminated, truncated, info
