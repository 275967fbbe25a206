"""Prioritized level replay in a worker: what the environments of a slice play next, drawn from published
chances.

Procgen opens the next level within the step that ends an episode, so the choice lies ready in its state:
made for all environments at the start of an iteration, and again for each that has opened an episode since.
So every level is chosen with the scores of the iteration in which it is opened.
"""

import numpy as np

from parallel_ppo.algorithms.level_replay import drawn_levels
from parallel_ppo.envs.contract import SliceEnv
from parallel_ppo.envs.procgen import ProcgenSlice
from parallel_ppo.envs.procgen_levels import set_next_levels
from parallel_ppo.keyed import generator
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.memory import Memory, Slab


class LevelChoice:
    def __init__(self, settings: Settings, memory: Memory) -> None:
        self.settings, self.shape, self.memory = settings, settings.shape, memory
        self.is_prioritized = settings.env.level_sampler == "plr"

    def before_step(
        self, env: SliceEnv, slice_index: int, iteration: int, step: int, start: np.ndarray
    ) -> None:
        """`start` [n]: whose observation opens an episode."""
        chosen = range(len(start)) if step == 0 else start.nonzero()[0].tolist()
        if not self.is_prioritized or not chosen:
            return
        draws = generator(self.settings.training.seed, "level", slice_index, iteration, step)
        levels = drawn_levels(self._chances(slice_index, iteration), draws.random(len(start)))
        first = self.settings.env.start_level
        set_next_levels(env, {index: first + int(levels[index]) for index in chosen})

    def after_steps(self, env: SliceEnv, slab: Slab, columns: slice) -> None:
        """Unfinished episodes tell their level in the last row, so that it gets a score too."""
        if self.is_prioritized:
            assert isinstance(env, ProcgenSlice)
            ended, last = slab.episode_start[-1, columns], slab.level_seed[-1, columns]
            slab.level_seed[-1, columns] = np.where(ended, last, env.playing_levels())

    def _chances(self, slice_index: int, iteration: int) -> np.ndarray:
        if self.shape.num_versions:
            return self.memory.version_level_chances[self.shape.version_row(slice_index, iteration)]
        return self.memory.level_chances
