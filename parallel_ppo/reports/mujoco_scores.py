"""Published PPO returns on MuJoCo after a million steps: mean and standard deviation.

CleanRL: `ppo_continuous_action`, training returns on v4, 3 seeds (docs.cleanrl.dev). Zoo: tuned settings, evaluated
on v3 (rl-baselines3-zoo, benchmark.md). We train on v5.
"""

from __future__ import annotations

from typing import NamedTuple

STEPS = 1_000_000
SEEDS = tuple(range(1, 11))


class Return(NamedTuple):
    mean: float
    deviation: float


class Task(NamedTuple):
    cleanrl: Return | None
    zoo: Return | None
    changes: str  # of rewards, observations and models from v4 to v5


HEALTHY = "no reward for being healthy in the step that ends an episode"
TASKS = {
    "HalfCheetah-v5": Task(Return(1442.64, 46.03), Return(5819.10, 663.53), ""),
    "Hopper-v5": Task(Return(2382.86, 271.74), Return(2410.44, 10.03), HEALTHY),
    "Walker2d-v5": Task(
        Return(2287.95, 571.78), Return(3478.80, 821.71), f"{HEALTHY}; equal friction of both feet"
    ),
    "Ant-v5": Task(
        None, Return(1327.16, 451.58), f"{HEALTHY}; contact forces are observed and always cost (v3 had both)"
    ),
    "Swimmer-v5": Task(None, Return(281.56, 9.67), ""),
    "Humanoid-v5": Task(
        Return(716.11, 49.08), None, f"{HEALTHY}; contacts cost as in v3; constant observations removed"
    ),
    "InvertedPendulum-v5": Task(Return(963.09, 22.20), None, HEALTHY),
    "InvertedDoublePendulum-v5": Task(None, None, f"{HEALTHY}; constant observations removed"),
    "Reacher-v5": Task(
        None, None, "the reward reads the state after the step; a constant observation removed"
    ),
    "Pusher-v5": Task(
        Return(-40.38, 7.15), None, "the reward reads the state after the step; a heavier object"
    ),
}
