"""A bar on a terminal for work of more than two seconds; elsewhere a line from time to time."""

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from parallel_ppo.records.display import FIRST_LINE_AFTER, LINE_INTERVAL

BAR_AFTER = 2.0  # seconds


@contextlib.contextmanager
def progress(what: Callable[[], str], total: int, done: Callable[[], int], quiet: bool) -> Iterator[None]:
    """Another thread calls `what`, which describes the work, and `done`."""
    console, stop = Console(stderr=True), threading.Event()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )

    def show_bar() -> None:
        if stop.wait(BAR_AFTER):
            return
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what(), total=total)
            while not stop.wait(0.25):
                bar.update(task, description=what(), completed=done())

    def print_lines() -> None:
        for seconds in itertools.chain([FIRST_LINE_AFTER], itertools.repeat(LINE_INTERVAL)):
            if stop.wait(seconds):
                return
            print(f"{what()}: {done()} of {total}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show_bar if console.is_terminal else print_lines, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
