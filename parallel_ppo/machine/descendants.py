"""Makes processes end with their parent: children, helpers that environments start, and their daemons."""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_PATIENCE = 2.0  # a process that survives longer is stuck in the kernel
COORDINATOR_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LIBRARY = ctypes.CDLL(None)
LOOK_EVERY = 0.1  # seconds
KEEPER = b"ppo-keeper"  # the kernel's name of a process that kills its descendants when its parent ends
OUTLIVES = "PARALLEL_PPO_OUTLIVES"  # environment variable of processes that end by themselves


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Remains in force after exec."""
    LIBRARY.prctl(PR_SET_PDEATHSIG, number)


def tie_to_parent(expected: int) -> None:
    """Ends this process when the parent ends, or at once if it ended already."""
    die_with_parent()
    if os.getppid() != expected:
        os._exit(1)


def adopt_orphans(is_on: bool = True) -> None:
    """Descendants whose parent ends become children of this process, including daemons."""
    LIBRARY.prctl(PR_SET_CHILD_SUBREAPER, int(is_on))


def become_keeper() -> None:
    """For a process that kills its descendants when its parent ends, and must live until then. The parent's watcher
    spares it, and the parent's end wakes it if it is stopped.
    """
    name = Path("/proc/self/comm")
    before = name.read_bytes().strip()
    os.register_at_fork(after_in_child=lambda: name.write_bytes(before))
    adopt_orphans()
    die_with_parent(signal.SIGCONT)
    name.write_bytes(KEEPER)


def ignore_signals() -> None:
    """Uses empty handlers instead of SIG_IGN, so that child processes get the default signals."""

    def restore() -> None:
        for number in COORDINATOR_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in COORDINATOR_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(-1)
    os.register_at_fork(after_in_child=restore)


def kill_descendants(keep: frozenset[int] = frozenset()) -> None:
    """Spares the children in `keep` and their descendants. Orphans become children of this process, so none escape."""
    known: set[int] = set()
    deadline = 0.0
    while found := _children(os.getpid()) - keep:
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
    """For a leader that was killed before it could kill its descendants."""
    for pid in _all_processes():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def _all_processes() -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def _children(process: int) -> set[int]:
    """Searches all processes, because the kernel's list of children misses some while others end."""
    found = set()
    for pid in _all_processes():
        with contextlib.suppress(OSError, ValueError):  # it may end at any time
            _state, parent, *_ = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(parent) == process:
                found.add(pid)
    return found


class Guarded:
    """Runs work in a process. All its descendants end with it, with this process, or at `close`.

    A guard process between the two kills them, even if this process is killed or the work crashes.
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


# --- environments in this process ---------------------------------------------------------------------------


@contextlib.contextmanager
def watching_descendants() -> Iterator[None]:
    """If this process is killed, its descendants are killed too, including daemons.

    `Guarded` is no option, because this process needs the terminal for Ctrl-C and debuggers. So another process
    lists the descendants regularly; it misses those younger than its last look. The fork server and guards kill
    their own descendants.
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
    known: dict[int, int] = {}  # pid -> descriptor, because pids are reused
    while not select.select([ended], [], [], LOOK_EVERY)[0]:
        _learn_of(process, known)
    for pid in list(known):
        if not _ends_by_itself(pid):
            _learn_of(pid, known)
    for pid, descriptor in known.items():
        if not _ends_by_itself(pid):  # it may have become a keeper meanwhile
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _learn_of(process: int, known: dict[int, int]) -> None:
    """Adds the descendants of a process and removes those that ended."""
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
        return True  # it ended
