"""The pool that performs tasks: its protocol, and the pool in this process. The pool of processes is in
`process_pool.py`.
"""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from parallel_ppo.exits import RestartsExhausted, RunError, is_interruption
from parallel_ppo.kernels.steps import OVER
from parallel_ppo.machine.signals import NoSignals
from parallel_ppo.storage.working_folder import WorkingFolder
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.optimizer_steps import Steps, StepTaker, make_steps
from parallel_ppo.workers.tasks import COLLECT, OPEN, Span, Task
from parallel_ppo.workers.worker import Worker

NOT_RESTORED = (
    "the state of an environment could not be reached again (its observation or its rewards came out"
    " differently, or its episode is too long to replay): it starts a new episode, and what is learned"
    " depends on it (bit_exact: false)"
)


class Pool(Protocol):
    num_workers: int
    restarts: int
    exact: bool
    steps: Steps | None  # None: the coordinator takes the optimizer steps

    @property
    def pids(self) -> list[int]: ...

    def begin(self, tasks: Iterable[Task]) -> None:
        """Hands out tasks that the next `run` will wait for. Nothing else may be asked in between."""

    def run(self, tasks: Iterable[Task]) -> list[Span]:
        """Returns when every task is done, those that were begun too."""

    def take_steps(self, task: Task, exchange: Callable[[], None]) -> list[Span]:
        """All optimizer steps of an update that `steps` has opened. Calls `exchange` when this node's sums
        have to be added to those of the others.
        """

    def start(self, tasks: Iterable[Task]) -> None:
        """Collects in the background, in this order, whenever a worker has nothing else to do."""

    def finish(self, tasks: Sequence[Task]) -> list[Span]:
        """Waits for these, which were started; returns all that was done in the background since the last
        call.
        """

    def iteration_done(self) -> None: ...

    def close(self) -> None: ...


class InlinePool:
    """Everything in this process, one task after the other."""

    def __init__(
        self, worker: Worker, slices: range, first_iteration: int, signals: NoSignals | None = None
    ) -> None:
        self.worker, self.signals = worker, signals or NoSignals()
        self.num_workers, self.restarts = 1, 0
        self.steps = make_steps(worker.settings, worker.memory, self.num_workers, slices)
        self.taker = None if self.steps is None else StepTaker(worker)
        self.folder, self.is_closed = WorkingFolder(), False
        with self.folder.entered():
            self.exact = all(
                [worker.run(opening_task(worker.memory, index, first_iteration)) for index in slices]
            )

    def begin(self, tasks: Iterable[Task]) -> None:
        """There is no worker besides this process: `run` does them."""

    def run(self, tasks: Iterable[Task]) -> list[Span]:
        spans = []
        for task in tasks:
            if task.kind == COLLECT:
                self.worker.memory.steps_done[task.number] = 0
            started = time.monotonic()
            with self.folder.entered(), self.signals.interruptible(), self._explained(task):
                self.worker.run(task)
            spans.append(Span(0, task, started, time.monotonic()))
        return spans

    def take_steps(self, task: Task, exchange: Callable[[], None]) -> list[Span]:
        assert self.steps is not None and self.taker is not None
        self.taker.begin(task, 0)
        outcome = None
        while outcome != OVER:
            if self.steps.awaits_exchange():
                exchange()
                self.steps.finish_exchange()
            with self.signals.interruptible(), self._explained(task):
                outcome = self.taker.go_on(task)
        return self.steps.spans(task)

    def start(self, tasks: Iterable[Task]) -> None:
        """No worker is idle here: the tasks are done when they are waited for."""

    def finish(self, tasks: Sequence[Task]) -> list[Span]:
        return self.run(tasks)

    @contextlib.contextmanager
    def _explained(self, task: Task) -> Iterator[None]:
        try:
            yield
        except RunError:
            raise
        except BaseException as error:
            if is_interruption(error):
                raise
            raise RestartsExhausted(
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]} (in {task}); there is no"
                f" worker to replace here\n{traceback.format_exc()}"
            ) from None

    @property
    def pids(self) -> list[int]:
        return []

    def iteration_done(self) -> None:
        pass

    def close(self) -> None:
        """May be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        with self.folder.entered():
            self.worker.close()
        self.folder.close()


def opening_task(memory: Memory, slice_index: int, iteration: int) -> Task:
    fresh = bool(memory.state_stamp[memory.slot(iteration), slice_index] != iteration)
    assert not fresh or iteration == 0, "only the first iteration of a run starts without saved states"
    return Task(OPEN, slice_index, iteration, fresh)
