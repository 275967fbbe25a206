"""One place in the pool and the process that fills it now."""

import contextlib
import time
from collections import deque
from multiprocessing.connection import Connection

from parallel_ppo.workers.fork_server import Child
from parallel_ppo.workers.tasks import Collect, Join, Later, Question, TakeSteps


class WorkerHandle:
    def __init__(self, index: int, cpu: int | None, slices: list[int]) -> None:
        self.index, self.cpu, self.slices = index, cpu, slices
        self.child: Child | None = None
        self.channel: Connection | None = None
        self.outstanding: deque[Question] = deque()
        self.queue: deque[Question] = deque()
        self.background: deque[Collect] = deque()  # what it does when nothing else is asked, in order
        self.asked = 0.0
        self.progress: object = None  # what was last seen of it
        self.restarts = 0
        self.stopped_polls = 0
        self.traceback, self.earlier_traceback = "", ""
        self.lost_at: float | None = None  # until the replacement is as far as its predecessor

    @property
    def joins(self) -> bool:
        """It claims tasks by itself, or will."""
        return any(isinstance(task, Join) for task in (*self.outstanding, *self.queue))

    @property
    def steps(self) -> bool:
        """It takes optimizer steps, and is not about to open environments first."""
        return bool(self.outstanding) and isinstance(self.outstanding[0], TakeSteps)

    def send(self, task: Question) -> None:
        assert self.channel is not None
        if not self.outstanding:
            self.asked = time.monotonic()
        self.outstanding.append(task)
        self.channel.send(task)

    def send_later(self, task: Collect) -> None:
        """Dying workers cannot be told; their successors are."""
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send(Later(task))
