"""What all report commands share: one-line errors, exit codes, a parser that shows examples, progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.reports.errors import TrainerFailed


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage block in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parser(*, description: str, examples: Sequence[str]) -> Parser:
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    return Parser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def run(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and leave with its exit code; what the user can put right is one line, not a traceback."""
    program = Path(sys.argv[0]).name
    try:
        code = int(main() or ExitCode.DONE)
        sys.stdout.flush()
    except TrainerFailed as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    except InputError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = ExitCode.DONE
    except OSError as error:
        print(
            f"{program}: error: {error.strerror or error}: {error.filename or ''}".rstrip(": "),
            file=sys.stderr,
        )
        code = ExitCode.STORAGE
    sys.exit(code)


def make_directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{path} is not a directory; give --output-dir another name") from error
    return path


def number_list(text: str, *, flag: str, kind: type = int) -> list:
    """`1,2,4` as numbers; the error names the flag and the item that is not one."""
    numbers = []
    for item in text.split(","):
        try:
            numbers.append(kind(item))
        except ValueError:
            word = "whole numbers" if kind is int else "numbers"
            raise InputError(f"{flag} {text}: '{item}' is not a number; give {word} such as 1,2,4") from None
    return numbers


def progress_bar(console: Console) -> Progress:
    """A bar on a terminal; nothing where the output is a file or a pipe."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
