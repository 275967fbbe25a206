"""PPO for machines with CPUs: the same bits at any number of workers."""

from parallel_ppo.version import VERSION as __version__

__all__ = ["__version__"]
