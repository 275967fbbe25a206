#!/usr/bin/env python
"""Measure two versions of the project on the same work, in turns: which is faster?"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from benchmarks.contenders import ROOT, Ours, Unavailable, measure_ours
from benchmarks.throughput_report import spread
from benchmarks.works import WORKS, Work
from parallel_ppo.arguments import Parser, number_from, positive, run
from parallel_ppo.exits import InputError
from tools.same_bits import checkout

EXAMPLES = ("benchmarks/versions.py --before bfd3413 --work W1,W3 --rounds 5 --output versions.json",)
ITERATIONS = {"W1": 2, "W2": 4, "W3": 200, "W5": 2}  # measured in each run: some ten seconds on a few cores
TRAINER = Ours("train_parallel_timed.py", ())


def main() -> int:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    parser.add_argument("--before", required=True, metavar="COMMIT_OR_FOLDER", help="the other version")
    parser.add_argument("--work", default="W1,W3", help=f"of {', '.join(WORKS)} (default: %(default)s)")
    for flag, kind, default, what in (
        ("--rounds", positive, 5, "runs of each version"),
        ("--warmup", number_from(0), 1, "iterations before them"),
        ("--timeout", positive, 1800, "seconds allowed for one run"),
    ):
        parser.add_argument(
            flag, type=kind, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--iterations", type=positive, metavar="N", help="of each run (default: ten seconds or so of them)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the raw numbers as JSON")
    flags = parser.parse_args()
    names = flags.work.split(",")
    unknown = [name for name in names if name not in WORKS]
    if unknown:
        raise InputError(f"--work {flags.work}: {unknown[0]!r} is not one of {', '.join(WORKS)}")
    if flags.output is not None and not flags.output.absolute().parent.is_dir():
        raise InputError(f"--output {flags.output}: its folder does not exist")
    results: dict[str, list[dict[str, float]]] = {}
    with checkout(flags.before) as before:
        for name in names:
            iterations = flags.iterations or ITERATIONS[name]
            results[name] = compare(
                before, WORKS[name], flags.rounds, iterations, flags.warmup, flags.timeout
            )
    for name, rounds in results.items():
        ratios = spread([row["now"] / row["before"] for row in rounds], ".3f")
        print(
            f"{name}: now is {ratios} times as fast as {flags.before} (median of the ratios of "
            f"{len(rounds)} rounds, with their range)"
        )
    if flags.output is not None:
        flags.output.write_text(
            json.dumps({"before": flags.before, "steps_per_second": results}, indent=1) + "\n"
        )
    return 0


def compare(
    before: Path, work: Work, rounds: int, iterations: int, warmup: int, timeout: float
) -> list[dict[str, float]]:
    """Steps per second of both versions in every round; who is first alternates."""
    found = []
    for number in range(rounds):
        rates = {}
        sides = [("before", before), ("now", ROOT)]
        for side, project in sides if number % 2 == 0 else reversed(sides):
            try:
                measured = measure_ours(TRAINER, work, warmup + iterations, timeout, project)
            except Unavailable as problem:
                raise InputError(f"{work.name}, {side}: {problem}") from None
            rates[side] = work.steps * iterations / sum(measured.seconds[warmup:])
        found.append({side: rates[side] for side in ("before", "now")})
        print(
            f"{work.name}, round {number + 1}: before {rates['before']:,.1f} steps/s, now "
            f"{rates['now']:,.1f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    run(main)
