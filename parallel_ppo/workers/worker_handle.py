"""One place in the pool, and the process that fills it now."""

import contextlib
import time
from collections import deque
from multiprocessing.connection import Connection

from parallel_ppo.workers.fork_server import Child
from parallel_ppo.workers.tasks import OPEN, TAKE_STEPS, Task


class WorkerHandle:
    def __init__(self, index: int, cpu: int | None, slices: list[int]) -> None:
        self.index, self.cpu, self.slices = index, cpu, slices
        self.child: Child | None = None
        self.channel: Connection | None = None
        self.outstanding: deque[Task] = deque()
        self.queue: deque[Task] = deque()
        self.background: deque[Task] = deque()  # collects that it does when nothing else is asked, in order
        self.asked = 0.0
        self.progress: object = None  # as it was last seen
        self.restarts = 0
        self.stopped_polls = 0
        self.traceback, self.earlier_traceback = "", ""
        self.lost_at: float | None = None  # until the replacement has caught up with its predecessor

    @property
    def steps(self) -> bool:
        """It takes optimizer steps, and is not about to open environments first."""
        return bool(self.outstanding) and self.outstanding[0].kind == TAKE_STEPS

    @property
    def is_opening(self) -> bool:
        """It has to open environments before it can collect."""
        return any(task.kind == OPEN for task in (*self.outstanding, *self.queue))

    def send(self, task: Task) -> None:
        assert self.channel is not None
        if not self.outstanding:
            self.asked = time.monotonic()
        self.outstanding.append(task)
        self.channel.send(task)

    def send_background(self, task: Task) -> None:
        """A worker that is dying or opening environments gets it later, with all others (`ProcessPool._opened`)."""
        if self.channel is not None and not self.is_opening:
            with contextlib.suppress(OSError):
                self.channel.send(task)
