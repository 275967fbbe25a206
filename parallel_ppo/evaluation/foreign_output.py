"""Keeps the output of libraries away from ours."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def discarded() -> Iterator[None]:
    """Discards warnings, what C libraries write, and errors of finalizers (OpenGL contexts that could not be made).
    `print` still reaches the terminal.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: None
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stack.enter_context(_only_python(descriptor, name))
        yield


@contextlib.contextmanager
def _only_python(descriptor: int, name: str) -> Iterator[None]:
    """`sys.stdout` or `sys.stderr` gets another descriptor, and nothing reads its own."""
    stream = getattr(sys, name)
    try:
        is_own = stream.fileno() == descriptor
    except (AttributeError, OSError, ValueError):  # no stream, or not a file
        is_own = False
    if not is_own:
        yield
        return
    stream.flush()
    kept = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    with open(
        kept, "w", buffering=1, encoding=stream.encoding, errors="backslashreplace", closefd=False
    ) as ours:
        setattr(sys, name, ours)
        try:
            yield
        finally:
            setattr(sys, name, stream)
            os.dup2(kept, descriptor)
            os.close(kept)
