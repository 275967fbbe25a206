"""What the report commands share beside `arguments.py`: a folder to write to, text for the terminal, and
progress.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parallel_ppo.exits import InputError
from parallel_ppo.printable import printable


def make_directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{path}: is not a directory; give --output-dir another name") from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be made ({error.strerror}); give --output-dir another place"
        ) from error
    return path


def new_directory(path: Path, what_to_do: str = "give a new name") -> Path:
    """An empty folder: no link that lay there can lead a write elsewhere, and no result is overwritten."""
    if any(make_directory(path).iterdir()):
        raise InputError(f"{path}: is not empty; {what_to_do}")
    return path


def shown(text: object) -> str:
    """A name or a path as a console may print it: neither markup nor an escape sequence."""
    return escape(printable(str(text)))


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
