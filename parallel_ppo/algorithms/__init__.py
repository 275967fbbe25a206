"""The learning arithmetic: pure functions, each with a slow twin in the tests."""

from parallel_ppo.algorithms.a2c import A2C
from parallel_ppo.algorithms.algorithm import Algorithm
from parallel_ppo.algorithms.ppo import PPO
from parallel_ppo.algorithms.vtrace import APPO, IMPALA

ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO,
    "a2c": A2C,
    "a3c": A2C,
    "impala": IMPALA,
    "appo": APPO,
}
