"""`compare_results.py`: which runs to compare, and what to write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from parallel_ppo.arguments import Parser
from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line
from parallel_ppo.reports import theme
from parallel_ppo.reports.command_line import add_format_flag, directory_for, make_directory, shown
from parallel_ppo.reports.comparison import compare
from parallel_ppo.reports.comparison_report import document, run_records
from parallel_ppo.reports.document import (
    Document,
    as_html,
    as_json,
    as_text,
    print_document,
    to_csv,
    write,
)
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.runs import load_run, newest_run

EXAMPLES = (
    "compare_results.py",
    "compare_results.py --sequential runs/sequential-1 --parallel runs/parallel-1",
    "compare_results.py --run one=runs/w1 --run two=runs/w2 --run four=runs/w4 --output-dir workers",
)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(arguments)
    console = Console(quiet=flags.quiet)
    groups = choose_groups(flags, console)
    report = document(compare(groups))
    print_document(console, report)
    with console.status("drawing") if console.is_terminal else nullcontext():
        compared = [run.path for group in groups for run in group.runs]
        directory = Path(flags.output_dir) if flags.output_dir else directory_for("comparison", compared)
        written = write_comparison(groups, report, directory, kind=flags.format)
    console.print("wrote " + ", ".join(shown(path) for path in written), soft_wrap=True)
    return 0


def _parser() -> Parser:
    result = Parser(
        description="Compare runs: speedup with an interval, returns, memory, bit-identity. "
        "Without runs, the newest sequential and the newest parallel one under runs/.",
        examples=EXAMPLES,
    )
    add = result.add_argument
    add(
        "--sequential", metavar="DIR", action="append", default=[], help="a sequential run (repeat for seeds)"
    )
    add("--parallel", metavar="DIR", action="append", default=[], help="a parallel run (repeat for seeds)")
    add(
        "--run",
        metavar="LABEL=DIR",
        action="append",
        default=[],
        help="any run with a label (repeat for seeds); the first label, or --sequential, is the baseline",
    )
    add("--runs-dir", default="runs", help="where to look for the newest runs (default: %(default)s)")
    add("--output-dir", help="where to write (default: comparison-<names> in the folder of the runs)")
    add_format_flag(result)
    return result


def choose_groups(flags: argparse.Namespace, console: Console) -> list[Group]:
    named: dict[str, list[str]] = {"sequential": list(flags.sequential), "parallel": list(flags.parallel)}
    for item in flags.run:
        label, separator, directory = item.partition("=")
        if not (label and separator and directory):
            raise InputError(f"--run {item}: expected LABEL=DIR, for example --run four=runs/w4")
        named.setdefault(one_line(label), []).append(directory)
    if not flags.run:
        for kind in ("sequential", "parallel"):
            if not named[kind]:
                named[kind] = [str(newest_run(flags.runs_dir, kind=kind))]
                console.print(f"newest {kind} run: {shown(named[kind][0])}", soft_wrap=True)
    for label, directories in named.items():
        again = next((name for name in directories if directories.count(name) > 1), None)
        if again is not None:
            raise InputError(f"{again} is given twice for {label}; add another seed instead")
    groups = [
        Group(label, tuple(load_run(directory) for directory in directories))
        for label, directories in named.items()
        if directories
    ]
    if len(groups) < 2:
        raise InputError(f"only {groups[0].label} is given; a comparison needs two, add --run LABEL=DIR")
    return groups


def write_comparison(groups: Sequence[Group], report: Document, directory: Path, *, kind: str) -> list[Path]:
    texts = {
        "comparison_report.txt": as_text(report),
        "comparison.json": as_json(report),
        "comparison.html": as_html(report),
        "results.csv": to_csv(run_records(groups)),
    }
    note = f"{report.subtitle}\n{report.picture_note}"
    image = theme.sheet(report.panels, title=report.headline, note=note)
    picture = theme.save(image, make_directory(directory) / "comparison.png")
    return [picture, *write(directory, texts, report.panels, kind=kind)]
