"""Older parameters that collection acts with: with a lag, and for the actors of A3C. Copies every array that is
declared `versioned`; saves nothing else.
"""

from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.settings.sizes import Sizes


class Versions:
    def __init__(self, sizes: Sizes, memory: SharedMemory) -> None:
        self.sizes, self.memory = sizes, memory

    def begin(self) -> None:
        """A run starts with one version only."""
        for row in range(self.sizes.num_versions):
            self.memory.keep_version(row)

    def keep(self, iteration: int) -> None:
        """From `iteration` on, collection with a lag may act with all that is now published."""
        if self.sizes.lag:
            self.memory.keep_version(iteration % self.sizes.num_versions)

    def keep_actor(self, actor: int) -> None:
        """The actor collects with the parameters of just after its own step."""
        self.memory.keep_version(actor)
