"""The training levels that a policy does not solve."""

from __future__ import annotations

import numpy as np

from parallel_ppo.exits import InputError
from parallel_ppo.reports.runs import Run

RECENT = 5  # episodes of a level: it is solved if most of them were, not by one lucky episode long ago


def failed_levels(run: Run) -> list[int]:
    """The hardest first: least solved in its last episodes, then most often tried."""
    episodes = run.episodes
    if episodes is not None and not len(episodes.step):
        raise InputError(f"{run.name}: none of its episodes has ended yet; train it for longer")
    known = np.isfinite(episodes.level) & np.isfinite(episodes.success) if episodes else np.zeros(0, bool)
    if episodes is None or not known.any():
        raise InputError(
            f"{run.name}: its episodes.jsonl does not record which levels were solved; expected a Procgen run"
        )
    levels, success = episodes.level[known], episodes.success[known] == 1
    order = np.argsort(levels, kind="stable")
    numbers, starts = np.unique(levels[order], return_index=True)
    found = []
    for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
        solved = float(success[places[-RECENT:]].mean())
        if solved <= 0.5:
            found.append((solved, -len(places), int(number)))
    return [number for _, _, number in sorted(found)]
