"""One line of advice on speed, from the columns that a session's iterations recorded."""

import math
from collections import defaultdict
from typing import Any

from parallel_ppo.machine.iteration_model import Iteration, from_records, limited_by
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.worker_count import pieces_of

ENOUGH_SECONDS = 60.0  # of iterations: start-up and the first iterations are not what later ones are like
STARVED = 0.1  # of the time wanted of the cores; beyond it the shares say little about this run


class Tally:
    """Means over the iterations of a session, weighted by their time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sums: dict[str, float] = defaultdict(float)
        self.weights: dict[str, float] = defaultdict(float)

    def add(self, record: dict[str, Any]) -> None:
        self.seconds += record["t_iter"]
        for name, value in record.items():
            # The CPU's columns are 0 until there are two samples.
            is_measured = not name.startswith("cpu_") or record["cpu_percent"]
            if isinstance(value, (int, float)) and is_measured:
                self.sums[name] += record["t_iter"] * value
                self.weights[name] += record["t_iter"]

    def mean(self, name: str) -> float:
        return self.sums[name] / self.weights[name] if self.weights[name] else math.nan


def limit(
    tally: Tally,
    settings: Settings,
    *,
    num_slices: int,
    workers: int,
    cores: int,
    checkpoint_share: float,
) -> str | None:
    """`num_slices` and `workers` (0: none) are this node's. None where the measurements support no advice."""
    if tally.seconds < ENOUGH_SECONDS:
        return None
    pieces = pieces_of(settings, num_slices)
    iteration = from_records(tally.mean, pieces, workers=workers, cores=cores, checkpoints=checkpoint_share)
    if starved := _starved(iteration):
        return starved
    if not workers and iteration.checkpoints < iteration.total / 2:
        return None  # a run without worker processes does not show what they would cost
    return limited_by(iteration)


def _starved(iteration: Iteration) -> str | None:
    """Cores that were taken away explain a run's speed better than its own phases."""
    if iteration.stolen > STARVED:
        return (
            f"the host of this virtual machine, which gave {iteration.stolen:.0%} of the CPU time to others"
        )
    if iteration.core_taken > STARVED and iteration.workers <= iteration.cores:
        return (
            f"other programs, which ran on this run's cores for {iteration.core_taken:.0%} of the time; end"
            " them, or choose other cores with hardware.pinning"
        )
    return None
