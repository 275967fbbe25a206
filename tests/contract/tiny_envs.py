"""An environment whose networks have few weights. Importing this module registers it."""

from typing import Any

import gymnasium
import numpy as np


class TinyImage(gymnasium.Env):
    """Pictures of 2 x 2 random pixels; the action that is the first pixel modulo 3 is rewarded."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def _observation(self) -> np.ndarray:
        self.picture = self.np_random.integers(0, 256, (2, 2, 3), np.uint8)
        return self.picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: int) -> tuple:
        reward = float(action == int(self.picture[0, 0, 0]) % 3)
        return self._observation(), reward, bool(self.np_random.random() < 0.1), False, {}


class SixActions(gymnasium.Env):
    """A point in a box that six actions push; being near the middle is rewarded. Calls no function of libm."""

    observation_space = gymnasium.spaces.Box(-2, 2, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple:
        super().reset(seed=seed)
        self.place = self.np_random.random(6) * 2 - 1
        return self.place.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple:
        self.place = np.clip(self.place + 0.1 * action.astype(np.float64), -2, 2)
        is_over = bool(self.np_random.random() < 0.05)
        return self.place.astype(np.float32), -float(np.abs(self.place).max()), is_over, False, {}


for name, made in (("TinyImage-v0", TinyImage), ("SixActions-v0", SixActions)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=made)
