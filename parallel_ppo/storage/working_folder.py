"""Separate working folders for environments and for us, because environments may call `os.chdir`.

Relative paths of runs, films and traces so keep their meaning in a process with environments.
"""

import contextlib
import os
from collections.abc import Iterator


class WorkingFolder:
    """The working folder of environments, at first ours."""

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
    return os.open(".", os.O_PATH | os.O_DIRECTORY)  # a descriptor, because the folder may be deleted


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Returns to our working folder at the end."""
    folder = WorkingFolder()
    try:
        with folder.entered():
            yield
    finally:
        folder.close()


_left_by_imports: dict[str, int] = {}  # by module: the folder that its import changed to


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Returns to our working folder at the end, and records where the import of the module changed to.

    Its environments are made there later (`enter_that_of`), because a module is imported only once.
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
