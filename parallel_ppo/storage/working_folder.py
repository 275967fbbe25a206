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
