"""The coordinator's phases on the monotonic clock, and the shares of an iteration's time."""

import os
import time
from typing import Any, NamedTuple

from parallel_ppo.workers.tasks import COLLECT, Span

# The workers work, or the nodes exchange: the coordinator waits for others.
DELEGATED = frozenset(["collect", "revalue", "gradients", "reduce", "gather", "exchange"])


class Phase(NamedTuple):
    name: str
    started: float
    ended: float


class Timeline:
    """Entering a phase ends the previous one: each moment is counted once."""

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


def phase_shares(phases: list[Phase], *, t_rollout: float, t_iter: float) -> dict[str, float]:
    """Disjoint, and 1 in sum. In `share_coordinator` only the coordinator works."""

    def total(*names: str) -> float:
        return sum(phase.ended - phase.started for phase in phases if phase.name in names)

    shares = {
        "share_collect": t_rollout / t_iter,
        "share_gradients": total("revalue", "gradients") / t_iter,
        "share_reduce": total("reduce") / t_iter,
        "share_exchange": total("gather", "exchange") / t_iter,
    }
    return shares | {"share_coordinator": max(0.0, 1 - sum(shares.values()))}


def idle_shares(spans: list[Span], num_workers: int, *, collect: float, update: float) -> dict[str, Any]:
    """Shares of the collection and of the update for the mean and the worst worker, of both for each."""
    collecting, updating = [0.0] * num_workers, [0.0] * num_workers
    for span in spans:
        busy = collecting if span.task.kind == COLLECT else updating
        busy[span.worker] += span.seconds
    both = [_idle(sum(pair), collect + update) for pair in zip(collecting, updating, strict=True)]
    return {
        "idle_collect": _idle(sum(collecting) / num_workers, collect),
        "idle_collect_worst": _idle(min(collecting), collect),
        "idle_update": _idle(sum(updating) / num_workers, update),
        "idle_update_worst": _idle(min(updating), update),
        "idle_workers": [round(share, 4) for share in both],
    }


def _idle(busy: float, available: float) -> float:
    return max(0.0, 1 - busy / available) if available > 0 else 0.0


def process_started() -> float:
    """The start of this process on the monotonic clock."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age
