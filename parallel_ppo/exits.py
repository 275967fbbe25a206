"""Exit codes, and the exceptions that carry them to the command line."""

import signal
import traceback
from enum import IntEnum

from parallel_ppo.printable import printable


class ExitCode(IntEnum):
    DONE = 0
    DIFFERENT = 1  # verify: the learned policy differs
    INPUT = 2
    NUMBERS = 3
    RESTARTS = 4
    STORAGE = 5
    CLUSTER = 6
    CALLBACK = 7
    NOT_COMPARABLE = 8  # verify: the policy differs, but so does the machine
    PREEMPTED = 75
    INTERRUPTED = 130


class RunError(Exception):
    """Ends the run with one line for the user and the exit status `code`. `details`: the traceback of the user's
    code that failed, from another process.
    """

    code: int = ExitCode.INPUT
    details: str = ""

    def __str__(self) -> str:
        return " ".join(printable(" ".join(map(str, self.args))).splitlines())  # names may have line breaks


def details_of(error: BaseException) -> str:
    """The traceback of the cause of an error; empty if there is none."""
    if isinstance(error, RunError) and error.details:
        return error.details
    return "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""


class InputError(RunError):
    """The user's input cannot be used; nothing was started or written."""

    code = ExitCode.INPUT


class NumbersError(RunError):
    """A NaN or infinity appeared; the parameters are unchanged."""

    code = ExitCode.NUMBERS


class RestartsExhausted(RunError):
    """A worker kept failing; replacing it again would not help."""

    code = ExitCode.RESTARTS


class EnvironmentFault(RunError):
    """The user's environment raised, or contradicted its spaces. `detail` is the line without the place."""

    code = ExitCode.RESTARTS

    def __init__(self, where: str, detail: str = "") -> None:
        super().__init__(*filter(None, (where, detail)))  # both in `args`, because pickle keeps only these
        self.detail = detail


class StorageError(RunError):
    """Results cannot be written."""

    code = ExitCode.STORAGE


class ClusterError(RunError):
    """Another node is lost, late, or has a different configuration."""

    code = ExitCode.CLUSTER


class CallbackError(RunError):
    """The user's callback raised; the run is saved."""

    code = ExitCode.CALLBACK


class Interrupted(BaseException):
    """Raised by a signal to abandon an iteration. Not an Exception, so that user code does not catch it."""

    def __init__(self, code: ExitCode, signal_name: str) -> None:
        super().__init__(signal_name)
        self.code = code
        self.signal_name = signal_name


def is_interruption(error: BaseException) -> bool:
    """True for Ctrl-C and signals. A KeyboardInterrupt counts only if Python handles SIGINT; else the user's code
    raised it.
    """
    is_left_to_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Interrupted) or (isinstance(error, KeyboardInterrupt) and is_left_to_python)
