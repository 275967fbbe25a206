"""The progress of a run: one live line in a terminal, lines with timestamps elsewhere, and only warnings
with --quiet.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from parallel_ppo.printable import printable
from parallel_ppo.records.metrics import Record
from parallel_ppo.storage.files import open_to_append

FIRST_LINE_AFTER = 10.0  # seconds, where there is no terminal
LINE_INTERVAL = 60.0
WIDE = 120  # columns from which details are shown without --verbose


class Clock(NamedTuple):
    """Progress of a run."""

    elapsed: float  # seconds, earlier sessions included
    share: float  # of the budget
    left: float | None  # seconds, if they can be estimated


class Phases(Protocol):
    """Progress of the current iteration."""

    steps: int  # environment steps of an iteration

    def share(self, phase: str) -> float | None:
        """The finished share of a phase; None if unknown."""
        ...


class Display(Protocol):
    def start(self, header: list[str], clock: Callable[[], Clock]) -> None: ...

    def watch(self, phases: Phases) -> None: ...

    def phase(self, name: str) -> None: ...

    def show(self, record: Record) -> None: ...

    def note(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...

    def close(self) -> None: ...


def make_display(quiet: bool, verbose: bool = False) -> Display:
    console = Console(highlight=False)
    if not quiet and console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, verbose)
    return PlainDisplay(sys.stdout, sys.stderr, quiet=quiet, verbose=verbose)


def make_log(path: Path, name: str) -> Display:
    """A file for a node other than the first, which has the terminal."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(open_to_append(path), "a", encoding="utf-8")  # noqa: SIM115  (never closed)
    except OSError as error:
        print(f"warning: {path}: node {name} keeps no log ({error.strerror})", file=sys.stderr)
        return PlainDisplay(sys.stdout, sys.stderr, quiet=True)
    return PlainDisplay(file, file)


def duration_text(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


# --- what is shown ------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """`label value`, or `value unit`. A line that is too long drops the highest rank first."""

    rank: int
    label: str
    value: str
    unit: str = ""

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.label, self.value, self.unit) if part)


class Status:
    """The latest state of a run."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.record: Record | None = None
        self.clock: Callable[[], Clock] = lambda: Clock(0.0, 0.0, None)
        self.phases: Phases | None = None
        self.phase, self.phase_since = "starting", time.monotonic()

    def show(self, record: Record) -> None:
        """The returns of the last live evaluation stay until the next."""
        kept = {name: value for name, value in (self.record or {}).items() if name.startswith("eval_")}
        self.record = kept | record

    def enter(self, phase: str) -> None:
        self.phase, self.phase_since = phase, time.monotonic()

    def items(self, details: bool) -> list[Item]:
        clock = self.clock()
        left = [] if clock.left is None else [Item(3, "left", duration_text(clock.left))]
        head = [Item(0, "", f"{clock.share:4.0%}"), Item(5, "elapsed", duration_text(clock.elapsed)), *left]
        if self.record is None:
            return [*head, *self._first_iteration()]
        record = self.record
        shown = [
            *head,
            Item(4, "step", f"{record['steps_global']:,}"),
            Item(2, "", f"{record['fps']:,.0f}", "steps/s"),
            Item(1, "return", _number(record["episode_return_mean"])),
            *(
                Item(6, name, _number(record[f"eval_{name}_return"]))
                for name in ("train", "test")
                if f"eval_{name}_return" in record
            ),
        ]
        if record["world_size"] > 1:
            shown.append(Item(7, "slowest", str(record["slowest_node"])))
        if details:
            shown += [
                Item(8, "KL", f"{record['approx_kl']:.4f}"),
                Item(9, "entropy", f"{record['entropy']:.3f}"),
                Item(10, "memory", f"{record['rss_mb']:,.0f}", "MB"),
                Item(11, "", self._doing()),
            ]
        return shown

    def _first_iteration(self) -> list[Item]:
        share = self.phases.share(self.phase) if self.phases else None
        speed = []
        if self.phases and share and self.phase == "collect":
            seconds = max(1e-3, time.monotonic() - self.phase_since)
            speed = [Item(2, "", f"{share * self.phases.steps / seconds:,.0f}", "steps/s")]
        return [Item(1, "first iteration:", self._doing()), *speed]

    def _doing(self) -> str:
        share = self.phases.share(self.phase) if self.phases else None
        return self.phase if share is None else f"{self.phase} {share:.0%}"

    def fitted(self, width: int) -> list[Item]:
        """The items that fit into one line."""
        items = self.items(details=self.verbose or width >= WIDE)
        while len(items) > 1 and len("  ".join(item.text for item in items)) > width:
            items.remove(max(items, key=lambda item: item.rank))
        return items

    def line(self) -> str:
        """Everything, for files."""
        return "  ".join(item.text for item in self.items(details=True)).strip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- where it is shown --------------------------------------------------------------------------------------


class StatusDisplay:
    """The part that all displays with a `Status` share."""

    def __init__(self, verbose: bool) -> None:
        self.status = Status(verbose)

    def watch(self, phases: Phases) -> None:
        self.status.phases = phases

    def phase(self, name: str) -> None:
        self.status.enter(name)

    def show(self, record: Record) -> None:
        self.status.show(record)


class PlainDisplay(StatusDisplay):
    """For files and pipes: a line after ten seconds, then one a minute. Warnings go to `errors`.

    A thread prints, so that lines appear during a long iteration too.
    """

    def __init__(
        self, output: IO[str] | None, errors: IO[str] | None, *, quiet: bool = False, verbose: bool = False
    ) -> None:
        super().__init__(verbose)
        self.output, self.errors, self.quiet = output, errors, quiet
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._report, daemon=True)

    def start(self, header: list[str], clock: Callable[[], Clock]) -> None:
        self.status.clock = clock
        for line in header:
            self.note(line)
        if not self.quiet:
            self.thread.start()

    def note(self, line: str) -> None:
        if not self.quiet:
            _print(line, self.output)

    def warn(self, line: str) -> None:
        _print(f"warning: {line}", self.errors)

    def close(self) -> None:
        self.closed.set()
        if self.thread.is_alive():
            self.thread.join()

    def _report(self) -> None:
        wait = FIRST_LINE_AFTER
        while not self.closed.wait(wait):
            self.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self.status.line()}")
            wait = LINE_INTERVAL


def _print(line: str, file: IO[str] | None) -> None:
    if file is not None:  # a program without a terminal may have none
        with contextlib.suppress(OSError, ValueError):
            print(printable(line), file=file, flush=True)


class LiveDisplay(StatusDisplay):
    """One line, redrawn twice a second."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        super().__init__(verbose)
        self.console = console
        self.live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def start(self, header: list[str], clock: Callable[[], Clock]) -> None:
        """A header's items are separated by two spaces. A narrow terminal drops the last ones."""
        self.status.clock = clock
        for line in header:
            items = line.split("  ")
            while len(items) > 1 and len("  ".join(items)) > self.console.width:
                items.pop()
            self.note("  ".join(items))
        self.live.start()

    def note(self, line: str) -> None:
        """As `Text`: what comes from outside is never read as markup."""
        self.console.print(Text(printable(line)), soft_wrap=True)

    def warn(self, line: str) -> None:
        self.console.print(Text.assemble(("warning:", "bold yellow"), f" {printable(line)}"), soft_wrap=True)

    def close(self) -> None:
        self.live.stop()

    def _render(self) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        for number, item in enumerate(self.status.fitted(self.console.width)):
            line.append("  " if number else "")
            line.append(f"{item.label} " if item.label else "", style="dim")
            line.append(printable(item.value), style="bold green" if item.label == "return" else "bold")
            line.append(f" {item.unit}" if item.unit else "", style="dim")
        return line
