"""Wrappers for `env.wrappers`."""

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

VELOCITIES = {  # where an observation has them
    "CartPole": (1, 3),
    "MountainCar": (1,),
    "MountainCarContinuous": (1,),
    "Pendulum": (2,),
    "LunarLander": (2, 3, 5),
    "LunarLanderContinuous": (2, 3, 5),
}


class HideVelocities(gymnasium.ObservationWrapper):
    """Sets the velocities of a known environment, or the given places of a vector, to 0: the policy has to remember
    where things were.
    """

    def __init__(self, env: gymnasium.Env, places: Sequence[int] | None = None) -> None:
        super().__init__(env)
        name = env.unwrapped.spec.id.partition("-")[0] if env.unwrapped.spec is not None else ""
        if places is None and name not in VELOCITIES:
            raise ValueError(
                f"the velocities of {name or 'this environment'} are not known; give places=[...]"
            )
        self.places = list(VELOCITIES[name] if places is None else places)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        seen = np.array(observation)
        seen[self.places] = 0
        return seen


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
