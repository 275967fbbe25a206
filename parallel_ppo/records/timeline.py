"""What the coordinator does, phase after phase, on the monotonic clock: the raw material of shares and
traces.
"""

import os
import time
from typing import NamedTuple

# The workers work, or the nodes exchange: the coordinator waits for others.
DELEGATED = frozenset(["collect", "revalue", "gradients", "reduce", "gather", "exchange"])


class Phase(NamedTuple):
    name: str
    started: float
    ended: float


class Timeline:
    """Entering a phase ends the one before: no moment is counted twice and none is lost."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.name: str | None = None
        self.since = time.monotonic()

    def enter(self, name: str) -> None:
        self.leave()
        self.name = name

    def leave(self) -> None:
        now = time.monotonic()
        if self.name is not None:
            self.phases.append(Phase(self.name, self.since, now))
        self.name, self.since = None, now

    def take(self) -> list[Phase]:
        """The phases that have ended since the last call."""
        phases, self.phases = self.phases, []
        return phases


def seconds_alone(phases: list[Phase]) -> float:
    """The time in which only the coordinator worked."""
    return sum(phase.ended - phase.started for phase in phases if phase.name not in DELEGATED)


def process_started() -> float:
    """When this process began, on the monotonic clock."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age
