"""A worker as a process: one torch thread, one core, one socket to the coordinator."""

import contextlib
import ctypes
import os
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import NumbersError, RunError, details_of
from parallel_ppo.kernels.steps import EXCHANGE_OPENED, NOTHING, OVER
from parallel_ppo.machine.placement import keep_freed_memory
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.observer import make_observer
from parallel_ppo.workers.optimizer_steps import StepTaker
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, OPEN, TAKE_STEPS, Task
from parallel_ppo.workers.worker import Worker

# characters, so that a message fits one write: a worker stopped in the middle must not block the reader
MAX_TRACEBACK = 8000
WATCH_INTERVAL = 1.0
FIRST_TO_GO = "500"  # of 1000: when memory runs out, a worker can be replaced and the coordinator cannot


class Done(NamedTuple):
    """A task is finished; times are on the system's monotonic clock."""

    task: Task
    started: float
    ended: float
    exact: bool
    interrupted: float = 0.0


class ExchangeOpened(NamedTuple):
    """This node's sums of an optimizer step are there."""


class Failed(NamedTuple):
    """A task raised. `numbers` marks a NaN or infinity, which no restart would cure."""

    task: Task | None
    numbers: bool
    message: str
    details: str = ""  # the traceback of the user's code, where the message is one line


def set_up(cpu: int | None) -> None:
    """Threads and affinity. Signals and the tie to the parent are inherited or set by the fork server."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the coordinator has printed them when it tried the environment
    keep_freed_memory()
    if cpu is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(FIRST_TO_GO)
    _leave_at_once()


def _leave_at_once() -> None:
    """An `exit` in an environment's C code ends the process at once. The exit handlers of all loaded
    libraries would take a second, in which the coordinator could not know that it is gone. Handlers run last
    in, first out; C libraries without `on_exit` run them all.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        library.on_exit(library._exit, None)


def watch_parent(expected: int) -> None:
    """Ends this process with its parent, on kernels and in sandboxes that do not deliver the parent-death
    signal.
    """

    def watch() -> None:
        while os.getppid() == expected:
            time.sleep(WATCH_INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Background:
    """Collects that are done step by step while nothing more urgent has to be done."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.tasks = worker, deque[Task]()
        self.running: Task | None = None  # during a step
        self.steps: Iterator[None] | None = None
        self.started = self.busy = 0.0

    def step(self) -> Done | None:
        """One step of the first task; the reply if that was its last."""
        began, self.running = time.monotonic(), self.tasks[0]
        if self.steps is None:
            self.steps, self.started, self.busy = self.worker.collecting(self.tasks[0]), began, 0.0
        is_over = next(self.steps, self) is self
        now, self.running = time.monotonic(), None
        self.busy += now - began
        if not is_over:
            return None
        self.steps = None
        self.worker.probe("hand-over", self.tasks[0].iteration, 0)
        return Done(self.tasks.popleft(), self.started, now, True, now - self.started - self.busy)


def perform(worker: Worker, task: Task) -> bool:
    exact = worker.run(task)
    if task.kind in (COLLECT, GRADIENT):  # done and in shared memory, and the coordinator does not know yet
        worker.probe("hand-over", task.iteration, int(task.kind == GRADIENT))
    return exact


def take_steps(
    taker: StepTaker, index: int, task: Task, background: Background, send: Callable[[Any], None]
) -> None:
    """Collects in the background while there is no item to claim."""
    taker.begin(task, index)
    while (outcome := taker.go_on(task, waits=not background.tasks)) != OVER:
        if outcome == EXCHANGE_OPENED:
            send(ExchangeOpened())
        elif outcome == NOTHING and (done := background.step()) is not None:
            send(done)


def serve(
    descriptor: int,
    memory_descriptors: tuple[int, ...],
    settings: Settings,
    spec: EnvSpec,
    index: int,
    cpu: int | None,
) -> None:
    """Does what the coordinator asks until it hangs up, or says goodbye (None): then the environments are
    closed first.
    """
    channel = Connection(descriptor)
    task: Any = None
    background: Background | None = None
    try:
        set_up(cpu)
        probe = make_observer(index)
        probe("spawn", -1)
        memory = Memory(settings, spec, num_flat(Policy(settings, spec)), memory_descriptors)
        worker = Worker(settings, spec, memory, probe)
        background, taker = Background(worker), None
        while True:
            if background.tasks and not channel.poll():
                done = background.step()
                if done is not None:
                    channel.send(done)
                continue
            try:
                task = channel.recv()
            except (EOFError, ConnectionResetError):
                return
            if task is None:
                worker.close()
                return
            if task.kind == COLLECT and settings.sizes.lag:
                background.tasks.append(task)
                continue
            started, exact = time.monotonic(), True
            if task.kind == TAKE_STEPS:
                taker = taker or StepTaker(worker)
                take_steps(taker, index, task, background, channel.send)
            else:
                exact = perform(worker, task)
            channel.send(Done(task, started, time.monotonic(), exact))
            if task.kind == GRADIENT:
                probe("counted", task.iteration)
    except NumbersError as error:
        task = (background and background.running) or task
        when = f", iteration {task.iteration}" if task.kind in (OPEN, COLLECT) else ""
        _report(channel, Failed(task, True, f"worker {index}{when}: {error}"))
    except RunError as error:
        _report(channel, Failed(task, False, str(error), details_of(error)[-MAX_TRACEBACK:]))
    except BaseException:
        _report(channel, Failed(task, False, traceback.format_exc()[-MAX_TRACEBACK:]))


def _report(channel: Connection, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        channel.send(failure)
