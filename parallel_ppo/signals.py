"""Signals: the first one abandons the iteration at a safe place, a second Ctrl-C ends the process at once."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from parallel_ppo.exits import ExitCode, Interrupted

ENDINGS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.PREEMPTED,
    signal.SIGHUP: ExitCode.PREEMPTED,
    signal.SIGUSR1: ExitCode.PREEMPTED,
}


class Signals:
    """Raises `Interrupted` only inside `interruptible()`: files are never left half-written."""

    def __init__(self) -> None:
        self.pending: Interrupted | None = None
        self.active = False
        self.previous = {number: signal.signal(number, self._handle) for number in ENDINGS}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            if number == signal.SIGINT:
                os._exit(ExitCode.INTERRUPTED)  # the workers die with this process
            return
        self.pending = Interrupted(ENDINGS[signal.Signals(number)], signal.Signals(number).name)
        if self.active:
            self.active = False
            raise self.pending

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        self.active = True
        try:
            if self.pending is not None:
                raise self.pending
            yield
        finally:
            self.active = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside `interruptible()`, a stretch that must not be torn; a signal that came meanwhile is raised at its end."""
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
