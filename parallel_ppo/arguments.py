"""The parser, number formats, error style and exit handling of all commands."""

import argparse
import contextlib
import difflib
import errno
import itertools
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.printable import one_line

T = TypeVar("T")
UNITS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0}

HOME = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "train_parallel_timed.py": "train",
    "train_timed.py": "train --sequential",
    "train_ppo_sequential.py": "train --sequential",
    "train_ppo_distributed.py": "train",
    "evaluate.py": "evaluate",
    "play.py": "play",
    "plot_results.py": "plot",
    "compare_results.py": "compare",
    "quick_test.py": "doctor",
    "tools/suite.py": "suite",
}  # and the names of the commands in `parallel-ppo`
MODULE = "-m parallel_ppo "


def as_typed(example: str) -> str:
    """A command for this installation: with the script of a checkout, or with `parallel-ppo`."""
    script, space, rest = example.partition(" ")
    is_checkout = (HOME / "train_timed.py").is_file()
    if script in SCRIPTS and not is_checkout:
        return f"{_program('parallel-ppo')} {SCRIPTS[script]}{space}{rest}"
    if example.startswith(MODULE) and not is_checkout:
        return f"{_program('parallel-ppo')} {example.removeprefix(MODULE)}"
    try:
        is_elsewhere = script in SCRIPTS and Path.cwd() != HOME
    except OSError:  # the current folder was deleted
        is_elsewhere = True
    python = _program("python")
    return f"{python} {HOME / example}" if is_elsewhere else f"{python} {example}"


def _program(name: str) -> str:
    """A program beside this Python: its name if a shell finds it there, else its path."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not beside.exists() or (found is not None and Path(found) == beside):
        return name
    with contextlib.suppress(OSError, ValueError):
        return shlex.quote(str(beside.relative_to(Path.cwd())))
    return shlex.quote(str(beside))


class Parser(argparse.ArgumentParser):
    """Reports errors in one line that names the flag; `--help` ends with examples."""

    def __init__(self, *, description: str, examples: Sequence[str], quiet: bool = True) -> None:
        super().__init__(
            description=description,
            epilog="\n".join(["examples:", *(f"  {as_typed(example)}" for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.groups: dict[str, argparse._ArgumentGroup] = {}
        if quiet:
            self.add_argument("--quiet", action="store_true", help="print only warnings and errors")

    def add_trust_flag(self) -> None:
        self.group("advanced").add_argument(
            "--trust-checkpoint",
            action="store_true",
            help="use modules and states that another user's files name",
        )

    def group(self, name: str) -> "argparse._ArgumentGroup":
        """The group of this name in --help, created at its first use."""
        if name not in self.groups:
            self.groups[name] = self.add_argument_group(name)
        return self.groups[name]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown flag before the required flags that are missing because of it."""
        given = list(sys.argv[1:] if args is None else args)
        for word in given[: given.index("--")] if "--" in given else given:
            flag = word.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                known = [name for name in self._option_string_actions if name.startswith("--")]
                close = difflib.get_close_matches(flag, known, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}?" if close else "see --help"
                self.error(f"{flag}: no such flag; {hint}")
        return super().parse_known_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """Translates messages of argparse and of the converters below (`value: expected ...`)."""
        message = re.sub(r"invalid (?:int|float) value: '(.*)'$", r"\1: expected a number", message)
        message = re.sub(r"invalid choice: '(.*)' \(choose from (.*)\)$", r"\1: expected one of \2", message)
        message = re.sub(r"^argument ([^:]+): (?=.*: expected )", r"\1 ", message)
        message = re.sub(r"^argument ", "", message)
        message = re.sub(r"^unrecognized arguments: (.*)", r"\1: not expected here; see --help", message)
        message = re.sub(r"^the following arguments are required: (.*)", r"\1: missing; see --help", message)
        raise InputError(re.sub(r"expected (one|at least one) argument$", "expected a value", message))


# --- values -------------------------------------------------------------------------------------------------


def shortened(text: str) -> str:
    """Shortens a value for a message."""
    return text if len(text) <= 80 else text[:77] + "..."


class Refused(argparse.ArgumentTypeError, ValueError):
    """The message of a converter: `value: expected ...`."""


def expecting(what: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Turns a function that raises ValueError into a converter."""

    def decorate(convert: Callable[[str], T]) -> Callable[[str], T]:
        def checked(text: str) -> T:
            try:
                return convert(text)
            except (ValueError, OverflowError):
                raise Refused(f"{shortened(text)}: expected {what}") from None

        return checked

    return decorate


@expecting("a whole number such as 128 or 1e6")
def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def number_from(least: int, most: int | None = None) -> Callable[[str], int]:
    @expecting(f"a whole number from {least} {'on' if most is None else f'to {most}'}")
    def convert(text: str) -> int:
        value = whole_number(text)
        if value < least or (most is not None and value > most):
            raise ValueError
        return value

    return convert


positive = number_from(1)


@expecting("a number such as 0.5 or 5e-4")
def number(text: str) -> float:
    return float(text)


@expecting("a whole number from 1 on, or auto")
def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else positive(text)


class UnitlessHours(float):
    """A time without a unit."""


@expecting("hours such as 1.5, or a time such as 90s, 5m, 1.5h or 1h30m")
def hours(text: str) -> float:
    parts = re.findall(r"([0-9.]+)([smh])", text)
    if not parts:
        return UnitlessHours(text)
    if "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError
    return sum(float(amount) * UNITS[unit] for amount, unit in parts)


def number_list(text: str, *, flag: str, kind: type = int) -> list:
    """`1,2,4` as numbers; an error names the flag and the wrong item."""
    numbers = []
    for item in text.split(","):
        try:
            numbers.append(kind(item))
        except ValueError:
            word = "whole numbers" if kind is int else "numbers"
            raise InputError(f"{flag} {text}: expected {word} such as 1,2,4, got {item!r}") from None
    return numbers


def named_run(text: str) -> Path:
    """A path, or the name of a run under runs/."""
    path, inside = Path(text), Path("runs", text)
    return inside if not path.exists() and inside.is_dir() else path


def next_free(pattern: str) -> Path:
    """The first of `runs/suite-{}` with 1, 2, ... that does not exist."""
    return next(path for n in itertools.count(1) if not (path := Path(pattern.format(n))).exists())


def writable_file(flag: str, path: Path, suffixes: Sequence[str]) -> Path:
    """Makes its folder. Raises before the work starts if the file cannot be written."""
    path = path.absolute()
    if path.suffix not in suffixes:
        raise InputError(f"{flag} {path}: expected a name that ends in {' or '.join(filter(None, suffixes))}")
    if path.is_dir():
        raise InputError(f"{flag} {path}: is a directory; expected a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()  # modes do not say it for every file system
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be written ({error.strerror}); give another place") from None
    return path


# --- endings ------------------------------------------------------------------------------------------------


class SteadyStream:
    """Output whose errors do not end a run (a closed pipe, a lost terminal)."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def keep_writing() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SteadyStream):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, SteadyStream(stream))


def guarded(main: Callable[..., int | None], *arguments: Any) -> int:
    """Calls `main`. Errors that a user can fix become one line and an exit code."""
    keep_writing()
    try:
        return int(main(*arguments) or ExitCode.DONE)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OSError as error:
        where = f"{str(error.filename)[:200]}: " if error.filename else ""
        print(one_line(f"error: {where}{error.strerror or error}"), file=sys.stderr)
        return ExitCode.INPUT if error.errno == errno.ENAMETOOLONG else ExitCode.STORAGE


def run(main: Callable[[], int | None]) -> NoReturn:
    sys.exit(guarded(main))
