"""Which levels a run solves, how often, and since when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_ppo.exits import InputError
from parallel_ppo.reports.runs import Episodes, Run

RECENT = 5  # episodes of a level that decide whether it is solved now


@dataclass(frozen=True)
class Level:
    """A level is solved when it was in most of its last few episodes: a lucky one long ago does not count."""

    number: int
    episodes: int
    solved: int
    recent: float  # share solved of the last RECENT episodes
    first_solved: float  # step; NaN: never
    last_solved: float

    @property
    def is_solved(self) -> bool:
        return self.recent > 0.5


def known_levels(run: Run) -> Episodes | None:
    """The episodes that say which level they were, and whether it was solved; None where there are none."""
    episodes = run.episodes
    if episodes is None:
        return None
    known = np.isfinite(episodes.level) & np.isfinite(episodes.success) & np.isfinite(episodes.step)
    return Episodes(*(column[known] for column in vars(episodes).values())) if known.any() else None


def levels_of(episodes: Episodes) -> list[Level]:
    """The hardest first: least solved of late, then most often tried."""
    order = np.argsort(episodes.level, kind="stable")
    numbers, starts = np.unique(episodes.level[order], return_index=True)
    found = []
    for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
        success = episodes.success[places] == 1
        steps = episodes.step[places][success]
        found.append(
            Level(
                number=int(number),
                episodes=len(places),
                solved=int(success.sum()),
                recent=float(success[-RECENT:].mean()),
                first_solved=float(steps[0]) if len(steps) else float("nan"),
                last_solved=float(steps[-1]) if len(steps) else float("nan"),
            )
        )
    return sorted(found, key=lambda level: (level.recent, -level.episodes, level.number))


def failed_levels(run: Run) -> list[int]:
    """The numbers of those that are not solved, hardest first."""
    if run.episodes is not None and not len(run.episodes.step):
        raise InputError(f"{run.name}: none of its episodes has ended yet; train it for longer")
    episodes = known_levels(run)
    if episodes is None:
        raise InputError(
            f"{run.name}: its episodes.jsonl does not say which levels were solved; "
            "expected a run on Procgen by this version"
        )
    return [level.number for level in levels_of(episodes) if not level.is_solved]


def growth(episodes: Episodes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After each episode: its step, how many levels were seen so far, and how many of them solved at
    least once.
    """
    order = np.argsort(episodes.step, kind="stable")
    levels, success = episodes.level[order], episodes.success[order] == 1
    return episodes.step[order], _distinct(levels, np.ones(len(levels), bool)), _distinct(levels, success)


def _distinct(levels: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How many different levels there are among the counted entries up to each."""
    places = np.flatnonzero(counted)
    _, first = np.unique(levels[places], return_index=True)
    new = np.zeros(len(levels), np.int64)
    new[places[first]] = 1
    return np.cumsum(new)


def solved_over_time(episodes: Episodes, levels: list[Level], *, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """[levels, bins]: the share solved in each stretch of steps, NaN where a level was not played; and
    the bounds.
    """
    bounds = np.linspace(0, episodes.step.max(), bins + 1)
    column = np.clip(np.searchsorted(bounds, episodes.step, side="left") - 1, 0, bins - 1)
    places = {level.number: row for row, level in enumerate(levels)}
    row = np.array([places[int(number)] for number in episodes.level])
    cell, size = row * bins + column, len(levels) * bins
    played = np.bincount(cell, minlength=size)
    solved = np.bincount(cell, weights=episodes.success, minlength=size)
    shares = np.where(played > 0, solved / np.maximum(played, 1), np.nan)
    return shares.reshape(len(levels), bins), bounds
