"""What the pieces of an iteration cost, read from the traces of a scaling benchmark, for its simulation."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.machine.iteration_model import Iteration
from parallel_ppo.machine.iteration_simulation import Costs, costs_of


class Traced(NamedTuple):
    """Seconds of the pieces of work in traces, without the warm-up."""

    slices: list[float]
    lanes: list[float]
    gaps: list[float]  # between the end of a lane and the start of the next on the same worker
    reduces: list[float]  # of all lanes of a minibatch, added up over the workers that share them


def traced(paths: Sequence[Path], warmup: int) -> Traced:
    found = Traced([], [], [], [])
    for path in paths:
        events = [
            event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "task"
        ]
        collects, lanes, reduces = (
            [event for event in events if event["name"] == name] for name in ("collect", "gradient", "reduce")
        )
        warm = warmup + min((event["args"]["iteration"] for event in collects), default=0)
        lanes = [event for event in lanes if event["args"]["iteration"] >= warm]
        found.slices.extend(_seconds(event) for event in collects if event["args"]["iteration"] >= warm)
        found.lanes.extend(_seconds(event) for event in lanes)
        for before, after in pairwise(sorted(lanes, key=lambda event: (event["tid"], event["ts"]))):
            if _place(before) == _place(after):
                found.gaps.append(max(0.0, after["ts"] - before["ts"] - before["dur"]) / 1e6)
        firsts = sum(event["args"]["first_block"] == 0 for event in reduces)
        found.reduces.extend([sum(_seconds(event) for event in reduces) / firsts] if firsts else [])
    return found


def _seconds(event: dict[str, Any]) -> float:
    return float(event["dur"]) / 1e6


def _place(event: dict[str, Any]) -> tuple[int, ...]:
    """Lanes of one place follow each other without a pause for the optimizer."""
    return event["tid"], *(event["args"][name] for name in ("iteration", "epoch", "minibatch"))


def measured_costs(
    smallest: Iteration, alone: Sequence[Path], together: Sequence[Path], warmup: int
) -> tuple[Costs, Costs] | None:
    """Of one worker, and of workers that share the memory and the caches of a machine whose cores are all
    busy; from the traces of both, None where there is none.
    """
    seen, shared = traced(alone, warmup), traced(together, warmup)
    if smallest.workers != 1 or not seen.slices or not seen.lanes:
        return None
    claim, reduce = _mean_or_nothing(seen.gaps), _mean_or_nothing(seen.reduces)
    costs = costs_of(smallest, slices=seen.slices, lanes=seen.lanes, claim=claim, reduce=reduce)
    if not shared.slices or not shared.lanes:
        return costs, costs
    return costs, costs._replace(
        slices=tuple(shared.slices),
        lanes=tuple(shared.lanes),
        claim=_mean_or_nothing(shared.gaps),
        reduce=_mean_or_nothing(shared.reduces),
    )


def _mean_or_nothing(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
