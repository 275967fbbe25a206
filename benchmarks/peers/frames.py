"""Four stacked frames of 84x84, or colours of 32x32, that cost next to nothing to make: what is measured is
the network.

`gymnasium.make("frames:Frames-v0")`. Runs in the peers' own environments too, so it imports nothing of this
project.
"""

from typing import Any

import gymnasium
import numpy as np

NUM_PICTURES, EPISODE = 64, 128


def reel(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (NUM_PICTURES, *shape), np.uint8)


class Frames(gymnasium.Env):
    """A reel of random pictures; the action that is the picture's number modulo 6 is rewarded."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)
    pictures = reel(84, 84, 4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple:
        super().reset(seed=seed)
        self.at, self.steps = int(self.np_random.integers(NUM_PICTURES)), 0
        return self.pictures[self.at], {}

    def step(self, action: int) -> tuple:
        reward = float(action == self.at % 6)
        self.at, self.steps = (self.at + 1) % NUM_PICTURES, self.steps + 1
        return self.pictures[self.at], reward, self.steps == EPISODE, False, {}


class SmallFrames(Frames):
    observation_space = gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    pictures = reel(32, 32, 3)


class BlindCartPole(gymnasium.ObservationWrapper):
    """CartPole without velocities."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation * np.array([1, 0, 1, 0], np.float32)


gymnasium.register("Frames-v0", entry_point=Frames)
gymnasium.register("BlindCartPole-v0", entry_point=BlindCartPole)
gymnasium.register("SmallFrames-v0", entry_point=SmallFrames)
