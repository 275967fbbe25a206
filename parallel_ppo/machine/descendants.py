"""Processes that end with whoever started them: children, the helpers that environments start, and
daemons of those.
"""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_PATIENCE = 2.0  # longer lives only what is stuck in the kernel
COORDINATOR_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LIBRARY = ctypes.CDLL(None)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Holds through exec: even a parent that dies while this process still starts up takes it along."""
    LIBRARY.prctl(PR_SET_PDEATHSIG, number)


def tie_to_parent(expected: int) -> None:
    """Die when the parent dies; and at once, if it died before this line."""
    die_with_parent()
    if os.getppid() != expected:
        os._exit(1)


def adopt_orphans() -> None:
    """From here on, descendants whose parent dies become children of this process, daemons included."""
    LIBRARY.prctl(PR_SET_CHILD_SUBREAPER, 1)


def ignore_signals() -> None:
    """With handlers that do nothing, not SIG_IGN: what is started from here has the usual signals again,
    after exec and after fork.
    """

    def restore() -> None:
        for number in COORDINATOR_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in COORDINATOR_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(-1)
    os.register_at_fork(after_in_child=restore)


def kill_descendants(keep: frozenset[int] = frozenset()) -> None:
    """All but the children in `keep` and theirs. Orphans come to this process, so nobody escapes by
    ending its parent.
    """
    import psutil

    deadline = time.monotonic() + KILL_PATIENCE
    while time.monotonic() < deadline:
        found = [child for child in psutil.Process().children() if child.pid not in keep]
        if not found:
            return
        for child in found:
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                for process in (child, *child.children(recursive=True)):
                    process.kill()
                os.waitpid(child.pid, os.WNOHANG)
        time.sleep(0.002)


def kill_session(leader: int) -> None:
    """For a leader that was killed before it could kill its descendants: what it left behind is still in
    its session.
    """
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader:
                process.kill()


class Guarded:
    """Work in a process whose descendants all end with it, with this process (in whatever way), or at
    `close`.

    A guard between the two sees to that: this process may be killed, and the work may be stopped or crash.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        watched, self.lifeline = os.pipe()  # closes when this process ends
        self.guard = os.fork()
        if self.guard == 0:
            try:
                os.close(self.lifeline)
                _guard(work, watched)
            finally:
                os._exit(0)
        os.close(watched)

    def close(self) -> None:
        os.close(self.lifeline)
        if os.WIFSIGNALED(os.waitpid(self.guard, 0)[1]):
            kill_session(self.guard)


def _guard(work: Callable[[], None], watched: int) -> None:
    os.setsid()
    adopt_orphans()
    ignore_signals()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        tie_to_parent(guard)
        os.close(watched)
        work()
        return
    select.select([watched, os.pidfd_open(worker)], [], [])
    kill_descendants()
