"""Signals, and their effect at each point of a run.

Before training, the process ends at once. During training, a signal is recorded and wakes a waiting pool; the
iteration is abandoned at the next `check`, or anywhere inside `interruptible()`, whose work is discarded. Writing
files is never interrupted. A second Ctrl-C ends the process at once.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from parallel_ppo.exits import ExitCode, Interrupted

ENDINGS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.PREEMPTED,
    signal.SIGHUP: ExitCode.PREEMPTED,
    signal.SIGUSR1: ExitCode.PREEMPTED,
}


class TimeUp(BaseException):
    """Not an Exception, so that user code does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeUp in Python code that takes longer. Has no effect in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class NoSignals:
    """Leaves signals to Python, for evaluation and tests."""

    waker: socket.socket | None = None

    def check(self) -> None:
        pass

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Signals(NoSignals):
    """Handlers until `close`. Signals that were ignored stay ignored (nohup, background jobs)."""

    waker: socket.socket

    def __init__(self) -> None:
        self.pending: Interrupted | None = None
        self.is_starting = True
        self.active = False
        self.before_leaving: Callable[[str], None] = lambda signal_name: None
        self.waker, self._written = socket.socketpair()
        self.waker.setblocking(False)
        self._written.setblocking(False)
        self.previous_waker = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self.previous = {
            number: signal.signal(number, self._handle)
            for number in ENDINGS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code, name = ENDINGS[signal.Signals(number)], signal.Signals(number).name
        if self.is_starting:
            self._leave(code, name)
        if self.pending is not None:
            if number == signal.SIGINT:
                os._exit(ExitCode.INTERRUPTED)  # workers end with this process
            return
        self.pending = Interrupted(code, name)
        if self.active:
            self.active = False
            raise self.pending

    def _leave(self, code: ExitCode, name: str) -> None:
        """Needs no cleanup: nothing has a name, and every process ends with this one."""
        with contextlib.suppress(OSError):
            os.write(2, f"stopped by {name} before training started; nothing was changed\n".encode())
        self.before_leaving(name)
        os._exit(code)

    def started(self) -> None:
        """From now on there is state to save."""
        self.is_starting = False

    def check(self) -> None:
        """A safe place to stop. Empties the waker, which other signals fill too."""
        with contextlib.suppress(OSError):
            self.waker.recv(4096)
        if self.pending is not None:
            raise self.pending

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Work that may be interrupted anywhere, because its results are discarded then."""
        self.active = True
        try:
            self.check()
            yield
        finally:
            self.active = False

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.previous_waker)
        for end in (self.waker, self._written):
            end.close()
