"""`plot_results.py`: which runs to plot, and where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parallel_ppo.arguments import Parser
from parallel_ppo.exits import InputError
from parallel_ppo.reports import theme
from parallel_ppo.reports.command_line import (
    add_format_flag,
    directory_for,
    make_directory,
    shown,
)
from parallel_ppo.reports.groups import group_seeds
from parallel_ppo.reports.plots import LINES_NOTE, panels_of, title_of
from parallel_ppo.reports.runs import Run, find_runs, load_run

EXAMPLES = (
    "plot_results.py runs/parallel-1",
    "plot_results.py runs/seed1 runs/seed2 runs/seed3 --output-dir three-seeds --format pdf",
    "plot_results.py --log-file logs/PPO_Sequential/metrics.jsonl",
)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(arguments)
    console = Console(quiet=flags.quiet)
    runs = choose_runs(flags, console)
    for run in runs:
        for note in run.notes:
            console.print(f"[dim]note: {shown(note)}[/dim]", soft_wrap=True)
    by_place = sorted((run.path for run in runs), key=lambda path: path.resolve())
    directory = Path(flags.output_dir) if flags.output_dir else directory_for("plots", by_place)
    written = write_plots(runs, directory, kind=flags.format)
    console.print("wrote " + ", ".join(shown(path) for path in written), soft_wrap=True)
    return 0


def _parser() -> Parser:
    result = Parser(
        description="Plot returns over steps and time, evaluations, losses, entropy, KL, throughput, memory and "
        "phases. Runs that differ only in their seed become one curve. "
        "Without a run, the newest one under runs/.",
        examples=EXAMPLES,
    )
    result.add_argument("runs", nargs="*", metavar="RUN_DIR", help="run directories")
    result.add_argument(
        "--log-file", action="append", default=[], help="a metrics.jsonl without a run directory (repeatable)"
    )
    result.add_argument(
        "--runs-dir", default="runs", help="where to look for the newest run (default: %(default)s)"
    )
    result.add_argument(
        "--output-dir",
        help="where to write (default: plots/ in the run directory; for several runs, in their folder)",
    )
    add_format_flag(result)
    return result


def choose_runs(flags: argparse.Namespace, console: Console) -> list[Run]:
    directories = list(flags.runs)
    if not directories and not flags.log_file:
        found = find_runs(flags.runs_dir)
        if not found:
            raise InputError(
                f"no run under {flags.runs_dir}/; name a run, or make one with `make train-parallel`"
            )
        directories = [str(found[-1])]
        console.print(f"newest run: {shown(directories[0])}", soft_wrap=True)
    return [load_run(path) for path in [*directories, *flags.log_file]]


def write_plots(runs: Sequence[Run], directory: Path, *, kind: str) -> list[Path]:
    """One sheet as PNG, or a PDF for each panel."""
    groups = group_seeds(runs)
    panels = panels_of(groups)
    make_directory(directory)
    if kind == "pdf":
        return theme.save_pdfs(panels, directory)
    figure = theme.sheet(panels, title=title_of(groups), note=LINES_NOTE, columns=3)
    return [theme.save(figure, directory / "curves.png")]
