"""The learning arithmetic: pure functions, each with a slow twin in the tests."""

from parallel_ppo.algorithms.algorithm import Algorithm
from parallel_ppo.algorithms.ppo import PPO

ALGORITHMS: dict[str, Algorithm] = {"ppo": PPO}
