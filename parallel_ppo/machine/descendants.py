"""Processes that end with whoever started them: children, the helpers that environments start, and
daemons of those.
"""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_PATIENCE = 2.0  # longer lives only what is stuck in the kernel
COORDINATOR_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LIBRARY = ctypes.CDLL(None)
LOOK_EVERY = 0.1  # seconds
KEEPER = b"ppo-keeper"  # what the kernel calls who ends after its parent, with all its descendants
OUTLIVES = "PARALLEL_PPO_OUTLIVES"  # in the environment of what ends by itself, after whoever started it


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Holds through exec: even a parent that dies while this process still starts up takes it along."""
    LIBRARY.prctl(PR_SET_PDEATHSIG, number)


def tie_to_parent(expected: int) -> None:
    """Die when the parent dies; and at once, if it died before this line."""
    die_with_parent()
    if os.getppid() != expected:
        os._exit(1)


def adopt_orphans(is_on: bool = True) -> None:
    """From here on, descendants whose parent dies become children of this process, daemons included."""
    LIBRARY.prctl(PR_SET_CHILD_SUBREAPER, int(is_on))


def become_keeper() -> None:
    """For who kills all its descendants when it sees that its parent has ended. It must live until then: from
    here on a watcher of the parent leaves it alone, and a parent's end wakes it should it be stopped.
    """
    name = Path("/proc/self/comm")
    before = name.read_bytes().strip()
    os.register_at_fork(after_in_child=lambda: name.write_bytes(before))
    adopt_orphans()
    die_with_parent(signal.SIGCONT)
    name.write_bytes(KEEPER)


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
    """All but the children in `keep` and theirs. What a killed child leaves behind comes to this process, so
    nobody escapes by ending its parent.
    """
    import psutil

    known: set[int] = set()
    deadline = 0.0
    while found := {child.pid for child in psutil.Process().children()} - keep:
        if found - known:
            known |= found
            deadline = time.monotonic() + KILL_PATIENCE
        elif time.monotonic() > deadline:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
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
    ignore_signals()
    become_keeper()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        tie_to_parent(guard)
        os.close(watched)
        work()
        return
    select.select([watched, os.pidfd_open(worker)], [], [])
    kill_descendants()


# --- a process that makes environments itself ---------------------------------------------------------------


@contextlib.contextmanager
def watching_descendants() -> Iterator[None]:
    """Should this process be killed meanwhile, whatever it started is killed too, daemons included.

    It cannot be what `Guarded` is, a process under a guard: it has the terminal, for Ctrl-C and debuggers.
    So another process looks at its descendants now and then; it misses what is younger than its last look.
    Those of the fork server and of guards are left to them, who miss nobody.
    """
    adopt_orphans()
    watched = os.pidfd_open(os.getpid())
    process = os.getpid()
    watcher = os.fork()
    if watcher == 0:
        try:
            _watch(process, watched)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)
        adopt_orphans(False)


def _watch(process: int, ended: int) -> None:
    os.setsid()
    ignore_signals()
    known: dict[int, int] = {}  # pid -> descriptor: a pid may come to mean another process
    while not select.select([ended], [], [], LOOK_EVERY)[0]:
        _learn_of(process, known)
    for pid in list(known):
        if not _ends_by_itself(pid):
            _learn_of(pid, known)
    for pid, descriptor in known.items():
        if not _ends_by_itself(pid):  # it may have become a keeper since it was learned of
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _learn_of(process: int, known: dict[int, int]) -> None:
    """Adds the descendants of a process, and drops the dead."""
    found = [pid for pid in _descendants(process) if pid != os.getpid()]
    for pid in found:
        if pid not in known:
            with contextlib.suppress(ProcessLookupError):
                known[pid] = os.pidfd_open(pid)
    for pid, descriptor in list(known.items()):
        if select.select([descriptor], [], [], 0)[0]:
            os.close(known.pop(pid))


def _descendants(process: int) -> Iterator[int]:
    children: list[str] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += task.read_text().split()
    for child in map(int, children):
        if not _ends_by_itself(child):
            yield child
            yield from _descendants(child)


def _ends_by_itself(process: int) -> bool:
    place = Path(f"/proc/{process}")
    try:
        is_keeper = (place / "comm").read_bytes().strip() == KEEPER
        return is_keeper or f"{OUTLIVES}=".encode() in (place / "environ").read_bytes()
    except OSError:
        return True  # it has
