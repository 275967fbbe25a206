"""`plot_results.py`: which runs to plot, and where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parallel_ppo.arguments import Parser
from parallel_ppo.exits import InputError
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.command_line import directory_for, make_directory, progress_bar, shown
from parallel_ppo.reports.groups import group_seeds
from parallel_ppo.reports.levels_page import write_levels
from parallel_ppo.reports.plots import OVER_STEPS, OVER_TIME, curves_figure
from parallel_ppo.reports.runs import Run, find_runs, load_log, load_run

EXAMPLES = (
    "plot_results.py runs/parallel-1",
    "plot_results.py runs/seed1 runs/seed2 runs/seed3 --output-dir three-seeds",
    "plot_results.py --log-file logs/PPO_Sequential/metrics.jsonl",
)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(arguments)
    console = Console(quiet=flags.quiet)
    if flags.smoothing is not None and flags.smoothing < 1:
        raise InputError(f"--smoothing {flags.smoothing}: expected at least 1 iteration")
    runs = choose_runs(flags, console)
    for run in runs:
        for note in run.notes:
            console.print(f"[dim]note: {shown(note)}[/dim]", soft_wrap=True)
    by_place = sorted((run.path for run in runs), key=lambda path: path.resolve())
    directory = Path(flags.output_dir) if flags.output_dir else directory_for("plots", by_place)
    written = write_plots(runs, directory, smoothing=flags.smoothing, dark=flags.dark, console=console)
    console.print("wrote " + ", ".join(shown(path) for path in written), soft_wrap=True)
    return 0


def _parser() -> Parser:
    result = Parser(
        description="Plot returns, losses, entropy, KL, throughput, memory and phases over steps and time. "
        "Runs that differ only in their seed become a mean with its interval. "
        "Without a run, the newest one under runs/.",
        examples=EXAMPLES,
    )
    result.add_argument("runs", nargs="*", metavar="RUN_DIR", help="run directories")
    result.add_argument(
        "--log-file", action="append", default=[], help="a metrics.jsonl on its own (repeatable)"
    )
    result.add_argument(
        "--smoothing",
        type=int,
        help="iterations to smooth over (default: a twentieth of the run, at most 50)",
    )
    result.add_argument("--dark", action="store_true", help="on a dark ground")
    result.add_argument(
        "--runs-dir", default="runs", help="where the newest run is looked for (default: %(default)s)"
    )
    result.add_argument(
        "--output-dir",
        help="where to write (default: plots/ in the run directory; of several runs, beside them)",
    )
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
    return [load_run(directory) for directory in directories] + [load_log(path) for path in flags.log_file]


def write_plots(
    runs: Sequence[Run], directory: Path, *, smoothing: int | None, dark: bool, console: Console
) -> list[Path]:
    groups = group_seeds(runs)
    make_directory(directory)
    theme = themes.DARK if dark else themes.LIGHT
    written = []
    with progress_bar(console) as progress:
        task = progress.add_task("drawing", total=4)
        for over in (OVER_STEPS, OVER_TIME):
            figure = curves_figure(groups, over=over, smoothing=smoothing, theme=theme)
            for kind in ("png", "svg"):
                written.append(themes.save(figure, directory / f"curves_over_{over}.{kind}"))
                progress.advance(task)
        if len(runs) == 1:
            written += write_levels(runs[0], directory, theme)
    return written
