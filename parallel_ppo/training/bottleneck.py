"""What limited a session, in one line, from what its iterations recorded."""

import math
from collections import defaultdict
from typing import Any

from parallel_ppo.arguments import as_typed
from parallel_ppo.machine.iteration_model import from_records, limited_by
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.worker_count import pieces_of


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
    kind: str,
    num_slices: int,
    workers: int,
    cores: int,
    checkpoint_share: float,
) -> str | None:
    """`num_slices` and `workers` (0: none) are this node's. None before the first iteration."""
    if not tally.seconds:
        return None
    pieces = pieces_of(settings, num_slices)
    iteration = from_records(tally.mean, pieces, workers=workers, cores=cores, checkpoints=checkpoint_share)
    flag = "--num-workers {}"
    return limited_by(
        iteration, as_typed(f"train_parallel_timed.py {flag}") if kind == "sequential" else flag
    )
