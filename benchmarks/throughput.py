#!/usr/bin/env python
"""Measure this trainer and others on the same work, interleaved: peers, other versions, other settings.

In every round each contender runs once, in rotated order. A ratio compares two runs of one round, so that a
slow minute of the machine affects both.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from benchmarks.contenders import FORMS, ROOT, Contender, Unavailable, find
from benchmarks.works import WORKS, Work
from parallel_ppo.arguments import Parser, next_free, number_from, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.reports.command_line import new_directory
from parallel_ppo.reports.document import to_csv
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.storage.run_directory import git_commit

EXAMPLES = (
    "benchmarks/throughput.py --work W1 --against sb3,sb3_channels_last,sample_factory,rllib",
    "benchmarks/throughput.py --work W1,W3 --against commit:HEAD~1 --rounds 5",
    "benchmarks/throughput.py --work W2 --against ours:curiosity.kind=rnd,sequential",
)
Row = dict[str, Any]  # one run: work, contender, round, steps_per_second, ...


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    add = parser.add_argument
    add("--work", default="W1", metavar="NAMES", help=f"of {', '.join(WORKS)} (default: %(default)s)")
    add("--against", default="sb3", metavar="NAMES", help=f"of {FORMS} (default: %(default)s)")
    add("--rounds", type=positive, default=3, metavar="N", help="default: %(default)s")
    add("--warmup", type=number_from(0), default=1, metavar="N",
        help="iterations of each run that are left out (default: %(default)s)")  # fmt: skip
    add("--iterations", type=positive, metavar="N", help="measured in a run (default: the work's own)")
    add(
        "--timeout", type=positive, default=1800, metavar="SECONDS", help="for one run (default: %(default)s)"
    )
    add("--output-dir", type=Path, metavar="DIR",
        help="for the raw numbers as JSON and CSV, and the picture (default: the next free"
        " benchmarks/results/throughput-N)")  # fmt: skip
    return parser


def main() -> int:
    arguments = build_parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # contenders must not outlive this process
    works = {name: _work(name, arguments.iterations) for name in arguments.work.split(",")}
    names = ["ours", *(name for name in arguments.against.split(",") if name not in ("", "ours"))]
    machine = read_machine()
    with contextlib.ExitStack() as stack:
        contenders = {name: find(name, stack) for name in names}
        default = next_free(f"{ROOT}/benchmarks/results/throughput-{{}}")
        directory = new_directory(arguments.output_dir or default)
        facts = _facts(machine, works, contenders, arguments.warmup)
        rows: list[Row] = []
        problem = ""
        try:
            for name, work in works.items():
                try:
                    measured = _measure(name, work, contenders, facts["unavailable"], arguments, machine)
                except Unavailable as error:
                    problem = f"{name}: this checkout cannot be measured: {error}"
                    print(f"warning: {problem}", file=sys.stderr, flush=True)
                    continue
                rows += measured
                paths = write(directory, facts, rows)  # after each work: an interruption loses one
        finally:
            if not rows:
                with contextlib.suppress(OSError):
                    directory.rmdir()
        if not rows:
            raise InputError(problem)
    for path in paths:
        print(f"wrote {path}")
    for line in conclusions(rows):
        print(line)
    return 0


def _work(name: str, iterations: int | None) -> Work:
    if name not in WORKS:
        raise InputError(f"--work {name}: expected {', '.join(WORKS)}")
    return WORKS[name]._replace(iterations=iterations or WORKS[name].iterations)


def _measure(
    work_name: str,
    work: Work,
    contenders: dict[str, Contender],
    unavailable: dict[str, str],
    arguments: argparse.Namespace,
    machine: Machine,
) -> list[Row]:
    cores = plan_placement(machine, num_workers=None, pinning="none").num_workers
    rows = []
    for number in range(arguments.rounds):
        print(f"{work_name}, round {number + 1} of {arguments.rounds}", flush=True)
        for name in rotated(list(contenders), number):
            if name in unavailable:
                continue
            load = round(os.getloadavg()[0], 2)
            try:
                measured = contenders[name].measure(
                    work,
                    iterations=arguments.warmup + work.iterations,
                    cores=cores,
                    timeout=arguments.timeout,
                )
            except Unavailable as problem:
                if name == "ours":
                    raise
                unavailable[name] = str(problem)
                print(f"  {name}: left out, {problem}", flush=True)
                continue
            kept = measured.seconds[arguments.warmup :]
            rate = work.steps * len(kept) / sum(kept)
            rows.append({
                "work": work_name, "contender": name, "round": number + 1,
                "steps_per_second": round(rate, 2), "peak_mb": round(measured.peak_mb, 1),
                "load_before": load, "policy_sha256": measured.policy_sha256,
                "iteration_seconds": [round(seconds, 4) for seconds in measured.seconds],
            })  # fmt: skip
            print(f"  {name:<24} {rate:10,.1f} steps/s  {measured.peak_mb:7,.0f} MB", flush=True)
    return rows


def rotated(names: list[str], number: int) -> list[str]:
    """No contender is always first."""
    shift = number % len(names)
    return names[shift:] + names[:shift]


def _facts(
    machine: Machine, works: dict[str, Work], contenders: dict[str, Contender], warmup: int
) -> dict[str, Any]:
    """The conditions, without a host's name."""
    return {
        "works": {name: work._asdict() | {"description": work.description} for name, work in works.items()},
        "unavailable": {},
        "warmup": warmup,
        "machine": {
            "cpu_model": machine.cpu_model,
            "cpus": len(machine.cores),
            "physical_cores": machine.num_physical_cores,
            "cpu_quota": machine.cpu_quota,
            "memory_gb": round(machine.memory_limit_bytes / 1e9, 1),
        },
        "commit": git_commit(),
        "python": platform.python_version(),
        "versions": {name: contender.versions() for name, contender in contenders.items()},
    }


# --- results ------------------------------------------------------------------------------------------------


def rates(rows: list[Row], work: str, contender: str) -> dict[int, float]:
    """By round."""
    return {
        row["round"]: row["steps_per_second"]
        for row in rows
        if (row["work"], row["contender"]) == (work, contender)
    }


def ratios(rows: list[Row], work: str, contender: str) -> list[float]:
    """This checkout's speed divided by the contender's, round by round."""
    ours, theirs = rates(rows, work, "ours"), rates(rows, work, contender)
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def spread(values: list[float], pattern: str) -> str:
    """The median and the range."""
    low, middle, high = (format(f(values), pattern) for f in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def conclusions(rows: list[Row]) -> list[str]:
    """One line for each work and contender."""
    lines = []
    for work, contender in dict.fromkeys((row["work"], row["contender"]) for row in rows):
        speed = spread(list(rates(rows, work, contender).values()), ",.1f")
        line = f"{work}  {contender}: {speed} steps/s"
        if contender != "ours" and (found := ratios(rows, work, contender)):
            line += f"; this checkout is {spread(found, '.3f')} times as fast in {len(found)} rounds"
            if min(found) <= 1 <= max(found):
                line += ", no clear difference"
        lines.append(line + _same_bits(rows, work, contender))
    return lines


def _same_bits(rows: list[Row], work: str, contender: str) -> str:
    """Whether another version of this project learned the same parameters."""

    def learned(name: str) -> set[str]:
        return {row["policy_sha256"] for row in rows if (row["work"], row["contender"]) == (work, name)}

    hashes = learned(contender)
    if contender == "ours" or None in hashes:
        return ""
    return "; parameters are bit-identical" if hashes == learned("ours") else "; parameters differ"


def write(directory: Path, facts: dict[str, Any], rows: list[Row]) -> list[Path]:
    data = json.dumps(facts | {"runs": rows}, indent=1) + "\n"
    paths = [directory / f"throughput.{ending}" for ending in ("json", "csv", "png")]
    write_atomically(paths[0], data.encode())
    table = [{name: row[name] for name in row if name != "iteration_seconds"} for row in rows]
    write_atomically(paths[1], to_csv(table).encode())
    draw(paths[2], facts, rows)
    return paths


def draw(path: Path, facts: dict[str, Any], rows: list[Row]) -> None:
    """One panel for each work: bars to the medians, the fastest on top, with the range of the rounds."""
    from matplotlib.figure import Figure

    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["work"], {}).setdefault(row["contender"], []).append(row["steps_per_second"])
    works = list(found)
    heights = [1 + 0.4 * len(found[work]) for work in works]
    figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(works), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, work in zip(panels, works, strict=True):
        bars = sorted((statistics.median(speeds), name, speeds) for name, speeds in found[work].items())
        for place, (middle, name, speeds) in enumerate(bars):
            axes.barh(place, middle, color="#0072b2" if name == "ours" else "#999999", height=0.6)
            axes.plot([min(speeds), max(speeds)], [place, place], color="black", linewidth=1.5)
            beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{middle:,.4g}", (max(speeds), place), **beside)
        axes.set_yticks(range(len(bars)), [name for _, name, _ in bars])
        axes.set_title(facts["works"][work]["description"], fontsize=9, loc="left")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("environment steps per second, training included")
    figure.supxlabel(
        f"Medians and ranges of interleaved runs. {facts['machine']['cpu_model']},"
        f" {facts['machine']['cpus']} CPUs; commit {(facts['commit'] or 'unknown')[:9]}",
        fontsize=8, x=0.01, ha="left",
    )  # fmt: skip
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    run(main)
