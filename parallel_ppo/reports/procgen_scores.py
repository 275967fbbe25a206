"""Published facts about the 16 Procgen games: return ranges and the learning curves of OpenAI's PPO.

Ranges and curves: openai/train-procgen (`constants.py` and its results), mean of 3 runs. The curves are easy
mode, 64 environments x 256 steps, 3 epochs, IMPALA; each figure is the mean return within 0.15 M
steps of its position.
"""

from __future__ import annotations

from typing import NamedTuple

MILLION = 1_000_000
WINDOW = 150_000  # steps to either side of a published position


class Range(NamedTuple):
    low: float
    high: float


EASY_RANGE = {
    "bigfish": Range(1.0, 40.0),
    "bossfight": Range(0.5, 13.0),
    "caveflyer": Range(3.5, 12.0),
    "chaser": Range(0.5, 13.0),
    "climber": Range(2.0, 12.6),
    "coinrun": Range(5.0, 10.0),
    "dodgeball": Range(1.5, 19.0),
    "fruitbot": Range(-1.5, 32.4),
    "heist": Range(3.5, 10.0),
    "jumper": Range(1.0, 10.0),
    "leaper": Range(1.5, 10.0),
    "maze": Range(5.0, 10.0),
    "miner": Range(1.5, 13.0),
    "ninja": Range(3.5, 10.0),
    "plunder": Range(4.5, 30.0),
    "starpilot": Range(2.5, 64.0),
}

HARD_RANGE = {
    "bigfish": Range(0.0, 40.0),
    "bossfight": Range(0.5, 13.0),
    "caveflyer": Range(2.0, 13.4),
    "chaser": Range(0.5, 14.2),
    "climber": Range(1.0, 12.6),
    "coinrun": Range(5.0, 10.0),
    "dodgeball": Range(1.5, 19.0),
    "fruitbot": Range(-0.5, 27.2),
    "heist": Range(2.0, 10.0),
    "jumper": Range(1.0, 10.0),
    "leaper": Range(1.5, 10.0),
    "maze": Range(4.0, 10.0),
    "miner": Range(1.5, 20.0),
    "ninja": Range(2.0, 10.0),
    "plunder": Range(3.0, 30.0),
    "starpilot": Range(1.5, 35.0),
}

Curves = dict[str, tuple[float, ...]]  # training returns at the million steps of the line below

ON_200_LEVELS: Curves = {
    "bigfish": (2.0, 3.1, 5.6, 12.4),
    "bossfight": (0.7, 2.6, 5.2, 8.3),
    "caveflyer": (4.2, 4.5, 4.7, 7.3),
    "chaser": (1.1, 1.3, 2.1, 7.0),
    "climber": (3.2, 4.6, 6.6, 8.7),
    "coinrun": (7.9, 8.5, 8.8, 9.5),
    "dodgeball": (1.7, 2.0, 2.6, 5.1),
    "fruitbot": (5.7, 17.1, 24.2, 29.7),
    "heist": (3.5, 3.7, 4.4, 8.0),
    "jumper": (7.0, 7.4, 8.0, 8.5),
    "leaper": (3.4, 3.2, 3.8, 6.4),
    "maze": (5.5, 5.4, 7.1, 9.4),
    "miner": (2.5, 2.9, 5.9, 12.8),
    "ninja": (4.9, 4.4, 5.5, 7.5),
    "plunder": (4.0, 4.6, 4.9, 5.3),
    "starpilot": (7.4, 11.0, 18.9, 30.8),
}
STEPS_ON_200_LEVELS = (1, 2, 5, 25)
ON_ALL_LEVELS: Curves = {
    "bigfish": (1.7, 9.0, 19.4),
    "bossfight": (1.2, 7.6, 9.0),
    "caveflyer": (4.1, 5.5, 7.4),
    "chaser": (1.1, 2.2, 6.8),
    "climber": (3.0, 6.0, 10.3),
    "coinrun": (7.1, 6.5, 9.2),
    "dodgeball": (1.5, 1.3, 6.4),
    "fruitbot": (11.2, 26.0, 28.6),
    "heist": (2.8, 3.4, 7.1),
    "jumper": (6.1, 6.6, 7.8),
    "leaper": (3.2, 5.1, 7.2),
    "maze": (5.4, 6.1, 9.9),
    "miner": (2.6, 5.8, 11.1),
    "ninja": (4.8, 5.5, 8.2),
    "plunder": (4.0, 5.6, 14.9),
    "starpilot": (8.6, 26.8, 35.0),
}
STEPS_ON_ALL_LEVELS = (1, 5, 25)


class Published(NamedTuple):
    """A mean return and its position on the curve."""

    steps: int
    value: float


def game_name(env_id: str) -> str | None:
    """`coinrun` for `procgen:procgen-coinrun-v0`, `procgen-coinrun-v0` and `coinrun`; None for others."""
    name = env_id.split(":")[-1].removeprefix("procgen-").removesuffix("-v0")
    return name if name in EASY_RANGE else None


def normalized_score(env_id: str, mean_return: float, *, distribution_mode: str) -> float | None:
    """About 0 for a policy that ignores its observations, 1 for the best possible; None without a range."""
    ranges = {"easy": EASY_RANGE, "hard": HARD_RANGE}.get(distribution_mode)
    game = game_name(env_id)
    if ranges is None or game is None:
        return None
    low, high = ranges[game]
    return (mean_return - low) / (high - low)


def published_curve(env_id: str, *, distribution_mode: str, num_levels: int) -> list[Published]:
    """The published training returns for these levels, in order of steps; empty if there are none."""
    game = game_name(env_id)
    known = {200: (STEPS_ON_200_LEVELS, ON_200_LEVELS), 0: (STEPS_ON_ALL_LEVELS, ON_ALL_LEVELS)}
    if game is None or distribution_mode != "easy" or num_levels not in known:
        return []
    steps, curves = known[num_levels]
    return [Published(millions * MILLION, value) for millions, value in zip(steps, curves[game], strict=True)]
