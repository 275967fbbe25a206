"""Environments may call `os.chdir`. Where they share a process with us they have a working folder of their
own, so that relative paths (of runs, films, traces) keep their meaning.
"""

import contextlib
import os
from collections.abc import Iterator


class WorkingFolder:
    """Of environments; at first it is ours."""

    def __init__(self) -> None:
        self.theirs = _here()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        ours = _here()
        os.fchdir(self.theirs)
        try:
            yield
        finally:
            os.close(self.theirs)
            self.theirs = _here()
            os.fchdir(ours)
            os.close(ours)

    def close(self) -> None:
        os.close(self.theirs)


def _here() -> int:
    return os.open(".", os.O_PATH | os.O_DIRECTORY)  # not its name: it may have been deleted


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Back to ours at the end."""
    folder = WorkingFolder()
    try:
        with folder.entered():
            yield
    finally:
        folder.close()


_left_by_imports: dict[str, int] = {}  # a module and the folder that its import changed to


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Back to ours at the end. A module is imported once, perhaps long before its environments are made:
    they are made where the import has left them (`enter_that_of`).
    """
    folder = WorkingFolder()
    try:
        with folder.entered():
            yield
        if not os.path.samestat(os.stat("."), os.fstat(folder.theirs)):
            _left_by_imports[module] = os.dup(folder.theirs)
    finally:
        folder.close()


def enter_that_of(module: str) -> None:
    if module in _left_by_imports:
        os.fchdir(_left_by_imports[module])
