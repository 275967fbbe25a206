"""A worker as a process: one torch thread, one core, one socket to the coordinator."""

import contextlib
import ctypes
import os
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import NumbersError, RunError
from parallel_ppo.machine.placement import keep_freed_memory
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.observer import make_observer
from parallel_ppo.workers.rounds import make_rounds
from parallel_ppo.workers.steps import StepTaker
from parallel_ppo.workers.tasks import Collect, Gradient, Join, Later, Open, Question, Reduce, TakeSteps, Task
from parallel_ppo.workers.worker import Worker

# characters, so that a message fits one write: a worker stopped in the middle must not block the reader
MAX_TRACEBACK = 8000
WATCH_INTERVAL = 1.0
FIRST_TO_GO = "500"  # of 1000: when memory runs out, a worker can be replaced and the coordinator cannot


class Done(NamedTuple):
    """A task is finished; times are on the system's monotonic clock."""

    task: Question
    started: float
    ended: float
    exact: bool
    interrupted: float = 0.0


class RoundDone(NamedTuple):
    """All tasks of a round are done."""


class Failed(NamedTuple):
    """A task raised. `numbers` marks a NaN or infinity, which no restart would cure."""

    task: Question | None
    numbers: bool
    message: str


def set_up(cpu: int | None) -> None:
    """Threads and affinity. Signals and the tie to the parent are inherited or set by the fork server."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # they were said when the coordinator tried the environment
    keep_freed_memory()
    if cpu is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(FIRST_TO_GO)
    _leave_at_once()


def _leave_at_once() -> None:
    """An `exit` in an environment's C code ends the process there and then: the exit handlers of all
    loaded libraries take a second, in which nobody could know that it is gone. Handlers run last in,
    first out; C libraries without `on_exit` run them all.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        library.on_exit(library._exit, None)


def watch_parent(expected: int) -> None:
    """The second rope beside the parent-death signal, for kernels and sandboxes where that is not
    delivered.
    """

    def watch() -> None:
        while os.getppid() == expected:
            time.sleep(WATCH_INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Background:
    """Collects that are done step by step while nothing more urgent is asked."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.tasks = worker, deque[Collect]()
        self.steps: Iterator[None] | None = None
        self.started = self.busy = 0.0

    def step(self) -> Done | None:
        """One step of the first task; what is to be said when that was its last."""
        began = time.monotonic()
        if self.steps is None:
            self.steps, self.started, self.busy = self.worker.collecting(self.tasks[0]), began, 0.0
        is_over = next(self.steps, self) is self
        now = time.monotonic()
        self.busy += now - began
        if not is_over:
            return None
        self.steps = None
        return Done(self.tasks.popleft(), self.started, now, True, now - self.started - self.busy)


def perform(worker: Worker, task: Task) -> bool:
    exact = worker.run(task)
    if isinstance(task, (Collect, Gradient)):  # done and in shared memory, and nobody has been told
        worker.reach("hand-over", task.iteration, int(isinstance(task, Gradient)))
    return exact


def join(worker: Worker, channel: Connection, index: int, task: Join) -> bool:
    rounds = make_rounds(worker.memory, task.num_workers, lag=0)
    assert rounds is not None, "the coordinator has the library and this worker has not"

    def counted(one: Gradient | Reduce, is_last: bool) -> None:
        if isinstance(one, Gradient):
            worker.reach("counted", one.iteration)
        if is_last:
            channel.send(RoundDone())

    rounds.take_part(index, lambda one: perform(worker, one), counted)
    return True


def take_steps(taker: StepTaker, index: int, task: TakeSteps) -> bool:
    taker.begin(task, index)
    while taker.go_on(task):
        pass
    return True


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
    try:
        set_up(cpu)
        reach = make_observer(index)
        reach("spawn", -1)
        memory = Memory(settings, spec, num_flat(Policy(settings, spec)), memory_descriptors)
        worker = Worker(settings, spec, memory, reach)
        background, taker = Background(worker), None
        while True:
            if background.tasks and not channel.poll():
                task = background.tasks[0]
                done = background.step()
                if done is not None:
                    reach("hand-over", task.iteration, 0)
                    channel.send(done)
                continue
            try:
                task = channel.recv()
            except (EOFError, ConnectionResetError):
                return
            if task is None:
                worker.close()
                return
            if isinstance(task, Later):
                background.tasks.append(task.task)
                continue
            started = time.monotonic()
            if isinstance(task, Join):
                exact = join(worker, channel, index, task)
            elif isinstance(task, TakeSteps):
                taker = taker or StepTaker(worker)
                exact = take_steps(taker, index, task)
            else:
                exact = perform(worker, task)
            channel.send(Done(task, started, time.monotonic(), exact))
            if isinstance(task, Gradient):
                reach("counted", task.iteration)
    except NumbersError as error:
        when = f", iteration {task.iteration}" if isinstance(task, (Open, Collect)) else ""
        _tell(channel, Failed(task, True, f"worker {index}{when}: {error}"))
    except RunError as error:
        _tell(channel, Failed(task, False, str(error)))
    except BaseException:
        _tell(channel, Failed(task, False, traceback.format_exc()[-MAX_TRACEBACK:]))


def _tell(channel: Connection, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        channel.send(failure)
