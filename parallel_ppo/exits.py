"""How a run may end: exit codes and the exceptions that carry them to the command line."""

import signal
from enum import IntEnum

from parallel_ppo.printable import printable


class ExitCode(IntEnum):
    DONE = 0
    DIFFERENT = 1  # verify: another policy was learned
    INPUT = 2
    NUMBERS = 3
    RESTARTS = 4
    STORAGE = 5
    CLUSTER = 6
    CALLBACK = 7
    NOT_COMPARABLE = 8  # verify: and this machine cannot tell why
    PREEMPTED = 75
    INTERRUPTED = 130


class RunError(Exception):
    """Ends the run with one line for the user; `code` becomes the exit status."""

    code: int = ExitCode.INPUT

    def __str__(self) -> str:
        return printable(" ".join(map(str, self.args)))


class InputError(RunError):
    """Something the user gave cannot be used; nothing was started or written."""

    code = ExitCode.INPUT


class NumbersError(RunError):
    """A NaN or infinity appeared; parameters were left untouched."""

    code = ExitCode.NUMBERS


class RestartsExhausted(RunError):
    """A worker kept failing; replacing it again would not help."""

    code = ExitCode.RESTARTS


class EnvironmentFault(RunError):
    """The user's environment raised, or returned what its spaces do not allow. `detail` is the line
    without where it happened.
    """

    code = ExitCode.RESTARTS

    def __init__(self, where: str, detail: str = "") -> None:
        super().__init__(*filter(None, (where, detail)))  # both in `args`, which is what pickle keeps
        self.detail = detail


class StorageError(RunError):
    """Results can no longer be written."""

    code = ExitCode.STORAGE


class ClusterError(RunError):
    """Another node is gone, late, or runs something else."""

    code = ExitCode.CLUSTER


class CallbackError(RunError):
    """A function of the user's, called between iterations, raised; the run is saved."""

    code = ExitCode.CALLBACK


class Interrupted(BaseException):
    """Raised by a signal while an iteration may be abandoned. Not an Exception, so no handler eats it."""

    def __init__(self, code: ExitCode, signal_name: str) -> None:
        super().__init__(signal_name)
        self.code = code
        self.signal_name = signal_name


def is_interruption(error: BaseException) -> bool:
    """By the user, not by code of the user's that raises what it likes: where Ctrl-C has a handler of ours,
    nobody else's KeyboardInterrupt is one.
    """
    is_left_to_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Interrupted) or (isinstance(error, KeyboardInterrupt) and is_left_to_python)
