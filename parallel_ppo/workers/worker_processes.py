"""The processes of a pool: starting and killing them, confirming that they are dead, and how each ended."""

import contextlib
import os
import select
import selectors
import signal
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from parallel_ppo.exits import RestartsExhausted
from parallel_ppo.machine.cgroup import oom_kills
from parallel_ppo.machine.signals import NoSignals
from parallel_ppo.workers.fork_server import Child, ForkServer, ForkServerLost
from parallel_ppo.workers.tasks import OPEN, TAKE_STEPS, Task

FORK_SERVER_ATTEMPTS = 3
GOODBYE = 2.0  # for closing environments
KILL_PATIENCE = 60.0  # what does not go is stuck in the kernel (a dead file server, a broken disk)


class WorkerHandle:
    """One place in the pool, and the process that fills it now."""

    def __init__(self, index: int, cpu: int | None, slices: list[int]) -> None:
        self.index, self.cpu, self.slices = index, cpu, slices
        self.child: Child | None = None
        self.channel: Connection | None = None
        self.outstanding: deque[Task] = deque()
        self.queue: deque[Task] = deque()
        self.background: deque[Task] = deque()  # collects to do when idle, in order
        self.asked = 0.0
        self.progress: object = None  # when it was last looked at
        self.restarts = 0
        self.stopped_polls = 0
        self.traceback, self.earlier_traceback, self.details = "", "", ""
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


class WorkerProcesses:
    def __init__(self, fork_server: ForkServer, memory: tuple[int, ...], signals: NoSignals) -> None:
        """`memory` is the descriptors of the shared memory."""
        self.fork_server, self.memory = fork_server, memory
        fork_server.check = signals.check
        self.selector = selectors.DefaultSelector()
        if signals.waker is not None:
            self.selector.register(signals.waker, selectors.EVENT_READ, None)
        self.oom_kills = oom_kills(Path("/"))

    def start(self, member: WorkerHandle) -> None:
        member.child = self._spawn(member)
        member.channel = Connection(member.child.socket.detach())
        member.stopped_polls = 0
        self.selector.register(member.channel, selectors.EVENT_READ, member)
        self.selector.register(member.child.pidfd, selectors.EVENT_READ, member)

    def _spawn(self, member: WorkerHandle) -> Child:
        reason = ""
        for _ in range(FORK_SERVER_ATTEMPTS):
            try:
                return self.fork_server.spawn(member.index, member.cpu, self.memory)
            except ForkServerLost as lost:
                reason = str(lost)
                # The workers of the lost one die with it, and are replaced in turn.
                self.fork_server = self.fork_server.again()
        raise RestartsExhausted(
            f"worker {member.index} cannot be started: {reason}, {FORK_SERVER_ATTEMPTS} times in a row"
        )

    def kill(self, member: WorkerHandle) -> None:
        """It is dead when this returns."""
        if member.child is None or member.channel is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(member.child.pidfd, signal.SIGKILL)
        if not is_dead(member.child, KILL_PATIENCE):
            raise RestartsExhausted(
                f"worker {member.index} (pid {member.child.pid}) cannot be killed: it is stuck in the kernel,"
                " which a broken disk or file server can cause"
            )
        self.selector.unregister(member.channel)
        self.selector.unregister(member.child.pidfd)
        member.channel.close()
        os.close(member.child.pidfd)
        member.child, member.channel = None, None

    def cause_of_end(self, pid: int, what: str) -> str:
        """A dead worker's end in words, as precise as can be known."""
        status = self.fork_server.status_of(pid)
        return self._out_of_memory(status) or _describe_end(what, status)

    def _out_of_memory(self, status: int | None) -> str | None:
        """The kernel kills with SIGKILL too, and counts it."""
        if status not in (None, -signal.SIGKILL):
            return None
        before, self.oom_kills = self.oom_kills, oom_kills(Path("/"))
        if self.oom_kills <= before:
            return None
        return (
            "was killed by the kernel for lack of memory (use fewer environments or workers, or raise the"
            " limit)"
        )

    def close(self, members: Sequence[WorkerHandle], busy: Sequence[WorkerHandle]) -> None:
        """Idle workers close their environments first; busy ones are killed."""
        deadline = time.monotonic() + GOODBYE
        for member in members:
            if member.child is not None and member.channel is not None:
                with contextlib.suppress(OSError):
                    if member in busy:
                        signal.pidfd_send_signal(member.child.pidfd, signal.SIGKILL)
                    else:
                        member.channel.send(None)
        for member in members:
            if member.child is not None:
                is_dead(member.child, max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(RestartsExhausted):
                self.kill(member)
        self.selector.close()
        self.fork_server.close()


def is_dead(child: Child, timeout: float = 0.0) -> bool:
    """`poll` needs no descriptor: it works when they have run out."""
    sentinel = select.poll()
    sentinel.register(child.pidfd, select.POLLIN)
    return bool(sentinel.poll(timeout * 1000))


def _describe_end(what: str, status: int | None) -> str:
    if what != "died" or status is None:
        return what
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
