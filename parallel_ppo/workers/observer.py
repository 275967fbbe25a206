"""Moments in a run that tests may observe, or break. Nothing is observed unless PARALLEL_PPO_OBSERVER names a
Python file.
"""

import os
import runpy
from typing import Any, Protocol

VARIABLE = "PARALLEL_PPO_OBSERVER"


class Probe(Protocol):
    """Called at each moment; `about_to_change` is what the moment's work writes next."""

    def __call__(self, phase: str, iteration: int, step: int = 0, about_to_change: Any = None) -> None: ...


def unobserved(phase: str, iteration: int, step: int = 0, about_to_change: Any = None) -> None:
    pass


def make_observer(worker: int | None) -> Probe:
    """For a worker, or (None) for the coordinator: what the file's own `make_observer` returns."""
    file = os.environ.get(VARIABLE)
    return runpy.run_path(file)["make_observer"](worker) if file else unobserved
