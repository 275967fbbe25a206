"""Faults on purpose, for `tools/chaos.py` and the tests. Inert unless PARALLEL_PPO_FAULTS names a plan.

A plan is JSON: a list of {id, worker, phase, kind, iteration, step, after}. A fault happens once, in the named worker, at the
first fitting moment from `iteration` on; that it happened, and when, is told by a file `fired-<id>` beside the plan.
"""

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "PARALLEL_PPO_FAULTS"
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGSEGV": signal.SIGSEGV}


class Inert:
    """What a worker holds in normal life."""

    def reach(self, phase: str, iteration: int, step: int = 0) -> None:
        pass

    def attach(self, worker: Any) -> None:
        pass

    def hand_over(self, task: Any) -> None:
        pass


class FaultPlan:
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


class Injector(Inert):
    """Inside a worker: breaks it in the middle of what it does."""

    def __init__(self, plan: FaultPlan, worker: int) -> None:
        self.plan, self.worker = plan, worker
        self.iteration, self.num_gradients = -1, 0
        (plan.directory / f"pid-{worker}").write_text(str(os.getpid()))

    def reach(
        self, phase: str, iteration: int, step: int = 0, before: Callable[[], None] = lambda: None
    ) -> None:
        entry = self.plan.due(self.worker, phase, iteration, step)
        if entry is not None and self.plan.mark(entry["id"], iteration):
            before()
            _break(entry["kind"])

    def attach(self, worker: Any) -> None:
        """Wraps the phases of one worker object; the class is left alone."""
        open_slice, collect, step, gradient = worker.open, worker.collect, worker.step, worker.gradient
        gradient_views = worker.gradient_views

        def broken_open(task: Any) -> Any:
            self.reach("spawn", -1, 1)
            return open_slice(task)

        def broken_collect(task: Any) -> None:
            self.iteration = task.iteration
            collect(task)

        def broken_step(env: Any, t: int, *rest: Any) -> None:
            self.reach("collect", self.iteration, t)
            step(env, t, *rest)

        def broken_gradient(task: Any) -> None:
            self.num_gradients = self.num_gradients + 1 if task.iteration == self.iteration else 0
            self.iteration = task.iteration
            gradient(task)

        def broken_gradient_views(lane: int) -> Any:
            """Asked for when the lane is about to be written: it is left torn."""
            torn = worker.memory.lane_gradient[lane, :1]
            self.reach("gradient", self.iteration, self.num_gradients, lambda: torn.fill(float("nan")))
            return gradient_views(lane)

        worker.open, worker.collect, worker.step = broken_open, broken_collect, broken_step
        worker.gradient, worker.gradient_views = broken_gradient, broken_gradient_views

    def hand_over(self, task: Any) -> None:
        """The work is done and in shared memory, and nobody has been told."""
        if hasattr(task, "iteration"):
            self.reach("hand-over", task.iteration, int(type(task).__name__ == "Gradient"))


def _break(kind: str) -> None:
    library = ctypes.CDLL(None)
    if kind == "SIGSEGV":
        ctypes.string_at(0)
    elif kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[kind])
    elif kind == "exit":
        library.exit(1)
    elif kind == "hang":
        time.sleep(1e6)
    else:
        raise RuntimeError("an injected exception")


def armed_worker(worker: int) -> Inert:
    path = os.environ.get(VARIABLE)
    return Injector(FaultPlan(Path(path)), worker) if path else Inert()


def reach_checkpoint(iteration: int) -> None:
    """In the coordinator, which is about to write: the fault hits a worker that waits."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    plan = FaultPlan(Path(path))
    while (entry := plan.due(None, "checkpoint", iteration, 0)) is not None:
        plan.mark(entry["id"], iteration)
        pid = int((plan.directory / f"pid-{entry['worker']}").read_text())
        os.kill(pid, SIGNALS[entry["kind"]])
