"""Signals: what they mean depends on where the run is.

Before training nothing can be lost, so the process leaves at once. During training the signal is remembered
and wakes a waiting pool; the iteration is abandoned at the next safe place (`check`), or inside
`interruptible()`, whose work is thrown away anyway. While files are written nothing is interrupted. A second
Ctrl-C ends the process at once, whatever it does.
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
    """Not an Exception, so that no handler of the user's eats it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeUp in Python code that takes longer. In other threads there is no limit."""
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
    """Leaves signals to Python: evaluation, tests."""

    waker: socket.socket | None = None

    def check(self) -> None:
        pass

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Signals(NoSignals):
    """Handlers from here to `close`. What the caller had ignored stays ignored (nohup, background jobs)."""

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
                os._exit(ExitCode.INTERRUPTED)  # the workers die with this process
            return
        self.pending = Interrupted(code, name)
        if self.active:
            self.active = False
            raise self.pending

    def _leave(self, code: ExitCode, name: str) -> None:
        """No clean-up is needed: nothing has a name, and every process dies with this one."""
        with contextlib.suppress(OSError):
            os.write(2, f"stopped by {name} before training went on; nothing was changed\n".encode())
        self.before_leaving(name)
        os._exit(code)

    def started(self) -> None:
        """From here on there is something to save."""
        self.is_starting = False

    def check(self) -> None:
        """A safe place to stop at. Empties the waker, which would stay readable after a signal that is not ours."""
        with contextlib.suppress(OSError):
            self.waker.recv(4096)
        if self.pending is not None:
            raise self.pending

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Work that may be broken off anywhere, because its results will be thrown away."""
        self.active = True
        try:
            self.check()
            yield
        finally:
            self.active = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside `interruptible()`, a stretch that must not be torn; a signal is raised at its end."""
        was_active, self.active = self.active, False
        try:
            yield
        finally:
            self.active = was_active
        if was_active and self.pending is not None:
            self.active = False
            raise self.pending

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.previous_waker)
        for end in (self.waker, self._written):
            end.close()
