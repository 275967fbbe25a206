"""Breaks workers in the middle of what they do: a training loads this file as its PARALLEL_PPO_OBSERVER, and
reads from PARALLEL_PPO_FAULTS which faults are planned.

A plan is JSON: a list of {id, worker, phase, kind, iteration, step, after}. A fault happens once, in the
named worker, at the first fitting moment from `iteration` on. A file `fired-<id>` beside the plan records
that it happened, and when.
"""

import ctypes
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAN = "PARALLEL_PPO_FAULTS"
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGSEGV": signal.SIGSEGV}


class Plan:
    def __init__(self, path: Path) -> None:
        self.directory = path.parent
        self.entries = json.loads(path.read_text())

    def has_fired(self, number: int) -> bool:
        return (self.directory / f"fired-{number}").exists()

    def mark(self, number: int, iteration: int) -> bool:
        """False when another incarnation was first."""
        content = json.dumps({"monotonic": time.monotonic(), "iteration": iteration})
        try:
            descriptor = os.open(self.directory / f"fired-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        os.write(descriptor, content.encode())
        os.close(descriptor)
        return True

    def due(self, worker: int | None, phase: str, iteration: int, step: int) -> dict[str, Any] | None:
        for entry in self.entries:
            if (
                entry["phase"] == phase
                and worker in (None, entry["worker"])
                and (entry["after"] is None or self.has_fired(entry["after"]))
                and iteration >= entry["iteration"]
                and step >= entry["step"]
                and not self.has_fired(entry["id"])
            ):
                return entry
        return None


def make_observer(worker: int | None) -> Callable[..., None]:
    plan = Plan(Path(os.environ[PLAN]))
    visits: Counter[tuple[str, int]] = Counter()

    def probe_in_worker(phase: str, iteration: int, step: int = 0, about_to_change: Any = None) -> None:
        if (
            phase == "gradient"
        ):  # whichever microbatch it is: the first, second, ... of this worker in the iteration
            step = visits[phase, iteration]
            visits[phase, iteration] += 1
        entry = plan.due(worker, phase, iteration, step)
        if entry is not None and plan.mark(entry["id"], iteration):
            if about_to_change is not None:
                about_to_change[:1] = float("nan")  # it is left torn
            _break(entry["kind"])

    def probe_in_coordinator(phase: str, iteration: int, step: int = 0, about_to_change: Any = None) -> None:
        """It is about to write: the fault hits a worker that waits."""
        while (entry := plan.due(None, phase, iteration, step)) is not None:
            plan.mark(entry["id"], iteration)
            pid = int((plan.directory / f"pid-{entry['worker']}").read_text())
            os.kill(pid, SIGNALS[entry["kind"]])

    if worker is None:
        return probe_in_coordinator
    mine = plan.directory / f"pid-{worker}"
    half_written = mine.with_suffix(f".{os.getpid()}")  # another may read it at any moment
    half_written.write_text(str(os.getpid()))
    half_written.rename(mine)
    return probe_in_worker


def _break(kind: str) -> None:
    if kind == "SIGSEGV":
        ctypes.string_at(0)
    elif kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[kind])
    elif kind == "exit":
        ctypes.CDLL(None).exit(1)
    else:
        raise RuntimeError("an injected exception")
