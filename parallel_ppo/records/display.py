"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere, nothing with
--quiet.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from parallel_ppo.printable import printable
from parallel_ppo.records.metrics import Record
from parallel_ppo.storage.files import open_to_append

PLAIN_INTERVAL = 10.0
Progress = tuple[float, float | None]  # share of the budget, and the seconds left where they are known


class Display(Protocol):
    def start(self, header: list[str], progress: Callable[[], Progress]) -> None: ...

    def watch(self, share_collected: Callable[[], float]) -> None: ...

    def phase(self, name: str) -> None: ...

    def show(self, record: Record) -> None: ...

    def note(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...

    def close(self) -> None: ...


def make_display(quiet: bool) -> Display:
    console = Console(stderr=False, highlight=False)
    if quiet:
        return PlainDisplay(Console(stderr=True, highlight=False), quiet=True)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console, quiet=False)


def make_log(path: Path, name: str) -> Display:
    """For a node that does not lead: its own file instead of the terminal, which is the first node's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(open_to_append(path), "a", encoding="utf-8")  # noqa: SIM115  (never closed)
    except OSError as error:
        print(f"warning: {path}: node {name} keeps no log ({error.strerror})", file=sys.stderr)
        return PlainDisplay(Console(stderr=True, highlight=False), quiet=True)
    return PlainDisplay(Console(file=file, highlight=False), quiet=False)


def duration_text(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _shown(value: Any, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


def summary_line(record: Record, progress: float, eta: float | None) -> str:
    phases = (
        f"collect {record['t_rollout'] / record['t_iter']:.0%} update"
        f" {record['t_learn'] / record['t_iter']:.0%}"
    )
    return (
        f"{progress:4.0%}  eta {duration_text(eta) if eta is not None else '-'}  step"
        f" {record['steps_global']:,}  {record['fps']:,.0f} fps  return"
        f" {_shown(record['episode_return_mean'], '.2f')}  {phases}  kl {record['approx_kl']:.4f}  entropy"
        f" {record['entropy']:.3f}{sync_text(record)}"
    )


def sync_text(record: Record) -> str:
    """Nothing on one node."""
    if record["world_size"] == 1:
        return ""
    wait, transfer = record["t_sync_wait"] / record["t_iter"], record["t_sync_transfer"] / record["t_iter"]
    return (
        f"  nodes {record['world_size']}: waiting {wait:.0%} transfer {transfer:.0%}, slowest"
        f" {record['slowest_node']}"
    )


def node_lines(record: Record, most: int = 8) -> list[Text]:
    """One line a node: what it did with its time, and whether it waited or was waited for."""
    lines = []
    for report in record.get("nodes", [])[:most]:
        is_slowest = report["name"] == record["slowest_node"]
        lines.append(Text.assemble(
            ("node ", "dim"), (report["name"], "bold yellow" if is_slowest else "bold"),
            ("  collect ", "dim"), f"{report['t_rollout']:.1f}s", ("  update ", "dim"),
            f"{report['t_learn']:.1f}s",
            ("  waited ", "dim"), f"{report['t_wait']:.1f}s", ("  transfer ", "dim"),
            f"{report['t_transfer']:.1f}s",
            ("  the others wait for it" if is_slowest else "", "yellow"),
        ))  # fmt: skip
    hidden = len(record.get("nodes", [])) - most
    return lines + ([Text(f"and {hidden} more nodes", style="dim")] if hidden > 0 else [])


class PlainDisplay:
    """For files and pipes: at most one line every ten seconds, and each warning."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.last = float("-inf")
        self.progress: Callable[[], Progress] = lambda: (0.0, None)

    def start(self, header: list[str], progress: Callable[[], Progress]) -> None:
        self.progress = progress
        for line in header:
            self.note(line)

    def watch(self, share_collected: Callable[[], float]) -> None:
        pass

    def phase(self, name: str) -> None:
        pass

    def show(self, record: Record) -> None:
        now, (share, eta) = time.monotonic(), self.progress()
        if now - self.last >= PLAIN_INTERVAL or share >= 1:
            self.last = now
            self.note(summary_line(record, share, eta))

    def note(self, line: str) -> None:
        if not self.quiet:
            print(printable(line), file=self.console.file, flush=True)

    def warn(self, line: str) -> None:
        print(f"warning: {printable(line)}", file=self.console.file, flush=True)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A progress bar and two lines of figures, refreshed twice a second."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.record: Record | None = None
        self.progress: Callable[[], Progress] = lambda: (0.0, None)
        self.phase_name, self.phase_since = "starting", time.monotonic()
        self.share_collected: Callable[[], float] = lambda: 0.0
        self.live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=False)

    def start(self, header: list[str], progress: Callable[[], Progress]) -> None:
        self.progress = progress
        for line in header:
            self.note(line)
        self.live.start()

    def watch(self, share_collected: Callable[[], float]) -> None:
        self.share_collected = share_collected

    def phase(self, name: str) -> None:
        self.phase_name, self.phase_since = name, time.monotonic()

    def show(self, record: Record) -> None:
        self.record = record

    def note(self, line: str) -> None:
        """As `Text`: what comes from outside is never read as markup."""
        self.console.print(Text(printable(line)))

    def warn(self, line: str) -> None:
        self.console.print(Text.assemble(("warning:", "bold yellow"), f" {printable(line)}"))

    def close(self) -> None:
        self.live.stop()

    def _render(self) -> Group:
        share, left = self.progress()
        eta = "-" if left is None else duration_text(left)
        done = f" {self.share_collected():.0%}" if self.phase_name in ("collect", "warm-up") else ""
        doing = f"{self.phase_name}{done} {time.monotonic() - self.phase_since:.0f}s"
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(total=1.0, completed=share, width=30), Text(f"{share:.0%}", style="bold"),
                     Text(f"eta {eta}"), Text(doing, style="dim"))  # fmt: skip
        if self.record is None:
            return Group(head)
        record = self.record
        figures = Text.assemble(
            ("return ", "dim"), (_shown(record["episode_return_mean"], ".2f"), "bold green"), ("  fps ",
            "dim"), (f"{record['fps']:,.0f}", "bold"),
            ("  step ", "dim"), f"{record['steps_global']:,}", ("  kl ", "dim"), f"{record['approx_kl']:.4f}",
            ("  entropy ", "dim"), f"{record['entropy']:.3f}", ("  memory ", "dim"),
            f"{record['rss_mb']:,.0f} MB",
        )  # fmt: skip
        shares = Text.assemble(
            ("collect ", "dim"), f"{record['t_rollout'] / record['t_iter']:.0%}", ("  update ", "dim"),
            f"{record['t_learn'] / record['t_iter']:.0%}",
            ("  coordinator alone ", "dim"), f"{record['t_coordinator'] / record['t_iter']:.1%}",
            ("  workers ", "dim"), f"{record['num_workers']}",
            ("  idle ", "dim"), f"{record['idle_share']:.1%}",
        )  # fmt: skip
        return Group(head, figures, shares, *node_lines(record))
