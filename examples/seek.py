"""A first environment of one's own: a point with a thruster in a square room, and a target to reach."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 96  # pixels of a rendered picture


class Seek(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, room: float = 1.0, render_mode: str | None = None) -> None:
        self.room, self.render_mode = room, render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.position = self.velocity = self.target = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # makes self.np_random; draw from nothing else
        self.position, self.target = self.np_random.uniform(-self.room, self.room, (2, 2))
        self.velocity = np.zeros(2)
        return self._observation(), {}

    def step(self, action):
        self.velocity = 0.9 * self.velocity + 0.1 * np.asarray(action, np.float64)
        self.position = np.clip(self.position + 0.1 * self.velocity, -self.room, self.room)
        distance = float(np.linalg.norm(self.target - self.position))
        arrived = distance < 0.05
        return self._observation(), 10.0 if arrived else -0.1 * distance, arrived, False, {}

    def _observation(self):
        return np.concatenate([self.position, self.velocity, self.target]).astype(np.float32)

    def render(self):
        picture = np.full((SIZE, SIZE, 3), 255, np.uint8)
        for place, color in ((self.target, (220, 60, 40)), (self.position, (30, 90, 180))):
            column, row = ((place / self.room + 1) / 2 * (SIZE - 9)).astype(int)
            picture[row : row + 8, column : column + 8] = color
        return picture


gymnasium.register("Seek-v0", entry_point=Seek, max_episode_steps=200)
