"""Published facts about the 16 Procgen games: return ranges and the learning curves of OpenAI's PPO.

Ranges and curves: openai/train-procgen (`constants.py` and its results), mean of 3 runs. The curves are easy
mode, 64 environments x 256 steps, 3 epochs, IMPALA; each figure is the mean return within 0.15 M steps of
its position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MILLION = 1_000_000
WINDOW = 150_000  # steps to either side of a published position


class Range(NamedTuple):
    low: float
    high: float


class Curve(NamedTuple):
    """Published mean returns of one game; `train` is on 200 levels, `unlimited` on all of them."""

    random: float
    train_1m: float
    train_2m: float
    train_5m: float
    train_25m: float
    test_25m: float
    unlimited_1m: float
    unlimited_5m: float
    unlimited_25m: float


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

CURVES = {
    "bigfish": Curve(1.0, 2.0, 3.1, 5.6, 12.4, 4.8, 1.7, 9.0, 19.4),
    "bossfight": Curve(0.3, 0.7, 2.6, 5.2, 8.3, 7.4, 1.2, 7.6, 9.0),
    "caveflyer": Curve(3.6, 4.2, 4.5, 4.7, 7.3, 5.4, 4.1, 5.5, 7.4),
    "chaser": Curve(0.7, 1.1, 1.3, 2.1, 7.0, 6.0, 1.1, 2.2, 6.8),
    "climber": Curve(2.3, 3.2, 4.6, 6.6, 8.7, 6.0, 3.0, 6.0, 10.3),
    "coinrun": Curve(5.8, 7.9, 8.5, 8.8, 9.5, 8.7, 7.1, 6.5, 9.2),
    "dodgeball": Curve(1.4, 1.7, 2.0, 2.6, 5.1, 2.0, 1.5, 1.3, 6.4),
    "fruitbot": Curve(-1.5, 5.7, 17.1, 24.2, 29.7, 26.7, 11.2, 26.0, 28.6),
    "heist": Curve(3.7, 3.5, 3.7, 4.4, 8.0, 2.8, 2.8, 3.4, 7.1),
    "jumper": Curve(3.5, 7.0, 7.4, 8.0, 8.5, 5.7, 6.1, 6.6, 7.8),
    "leaper": Curve(2.7, 3.4, 3.2, 3.8, 6.4, 6.0, 3.2, 5.1, 7.2),
    "maze": Curve(5.4, 5.5, 5.4, 7.1, 9.4, 5.7, 5.4, 6.1, 9.9),
    "miner": Curve(1.2, 2.5, 2.9, 5.9, 12.8, 9.5, 2.6, 5.8, 11.1),
    "ninja": Curve(3.3, 4.9, 4.4, 5.5, 7.5, 5.6, 4.8, 5.5, 8.2),
    "plunder": Curve(4.4, 4.0, 4.6, 4.9, 5.3, 4.7, 4.0, 5.6, 14.9),
    "starpilot": Curve(2.9, 7.4, 11.0, 18.9, 30.8, 24.7, 8.6, 26.8, 35.0),
}


@dataclass(frozen=True)
class Published:
    """A published mean return and where on the curve it stands."""

    steps: int
    value: float
    levels: str


def game_name(env_id: str) -> str | None:
    """`coinrun` for `procgen:procgen-coinrun-v0`, `procgen-coinrun-v0` and `coinrun`; None for others."""
    name = env_id.split(":")[-1].removeprefix("procgen-").removesuffix("-v0")
    return name if name in EASY_RANGE else None


def normalised_score(env_id: str, mean_return: float, *, distribution_mode: str) -> float | None:
    """About 0 for a policy that does not look, 1 for the best possible; None where no range is published."""
    ranges = {"easy": EASY_RANGE, "hard": HARD_RANGE}.get(distribution_mode)
    game = game_name(env_id)
    if ranges is None or game is None:
        return None
    low, high = ranges[game]
    return (mean_return - low) / (high - low)


def published_curve(env_id: str, *, distribution_mode: str, num_levels: int) -> list[Published]:
    """The published training returns for these levels, in order of steps; empty where there are none."""
    game = game_name(env_id)
    if game is None or distribution_mode != "easy":
        return []
    curve = CURVES[game]
    if num_levels == 200:
        points = [(1, curve.train_1m), (2, curve.train_2m), (5, curve.train_5m), (25, curve.train_25m)]
        levels = "200 levels"
    elif num_levels == 0:
        points = [(1, curve.unlimited_1m), (5, curve.unlimited_5m), (25, curve.unlimited_25m)]
        levels = "all levels"
    else:
        return []
    return [Published(millions * MILLION, value, levels) for millions, value in points]
