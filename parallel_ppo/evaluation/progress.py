"""A bar on a terminal for work of more than two seconds."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

BAR_AFTER = 2.0  # seconds


@contextlib.contextmanager
def progress(what: str, total: int, done: Callable[[], int], quiet: bool) -> Iterator[None]:
    """Another thread calls `done`."""
    console, stop = Console(stderr=True), threading.Event()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )

    def show() -> None:
        if stop.wait(BAR_AFTER):
            return
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            while not stop.wait(0.25):
                bar.update(task, completed=done())

    thread = threading.Thread(target=show, daemon=True)
    if console.is_terminal and not quiet:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
