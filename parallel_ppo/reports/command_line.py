"""Shared by the report commands: folders to write to, text for the terminal, and progress."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parallel_ppo.arguments import Parser
from parallel_ppo.exits import InputError
from parallel_ppo.printable import printable

LONGEST_NAME = 100


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


def directory_for(what: str, runs: Sequence[Path]) -> Path:
    """`<what>` in a run; for several runs, `<what>-a+b` beside them."""
    places = list(dict.fromkeys(path.resolve() for path in runs))
    if len(places) == 1:
        directory = runs[0] / what
    else:
        parent = Path(os.path.commonpath([place.parent for place in places]))
        names = "+".join(str(place.relative_to(parent)).replace("/", "_") for place in places)
        if len(names) > LONGEST_NAME:
            names = f"{names[: LONGEST_NAME - 9]}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"
        with contextlib.suppress(ValueError):
            parent = parent.relative_to(Path.cwd())
        directory = parent / f"{what}-{names}"
    if directory.is_symlink():
        raise InputError(f"{directory} is a link; name a folder with --output-dir")
    return directory


def new_directory(path: Path, what_to_do: str = "give a new name") -> Path:
    """An empty folder: no link in it leads a write elsewhere, and no result is overwritten."""
    if any(make_directory(path).iterdir()):
        raise InputError(f"{path}: is not empty; {what_to_do}")
    return path


def add_format_flag(parser: Parser) -> None:
    parser.add_argument(
        "--format",
        choices=("png", "pdf"),
        default="png",
        help="png: all panels on one sheet; pdf: one file per panel, sized for a paper (default: %(default)s)",
    )


def shown(text: object) -> str:
    """A name or a path for a console, without markup and escape sequences."""
    return escape(printable(str(text)))


def progress_bar(console: Console) -> Progress:
    """A bar on a terminal, nothing elsewhere."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
