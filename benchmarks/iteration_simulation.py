#!/usr/bin/env python
"""SIMULATE iterations on machines that are not at hand, from the traces of `benchmarks/scaling.py --trace`.

`machine/iteration_model.py` knows only means. Here each piece of work takes as long as some measured one
did, slices stay with their worker, idle workers claim the next microbatch, and more workers than cores share them.
Caches, memory bandwidth and clock speeds are those of the measured machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from benchmarks.scaling import SizedRun, mean_iteration
from parallel_ppo.arguments import Parser, run
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.steps import SUM
from parallel_ppo.machine.iteration_model import Iteration, Pieces
from parallel_ppo.printable import count, printable
from parallel_ppo.records.trace import read_events
from parallel_ppo.reports.runs import load_run, read_object
from parallel_ppo.settings.layers import load_settings, read_settings
from parallel_ppo.training.worker_count import pieces_of
from parallel_ppo.workers.optimizer_steps import STAGE_NAMES
from parallel_ppo.workers.tasks import COLLECT, GRADIENT

MANY_CORES = Path(__file__).resolve().parents[1] / "config" / "ppo_many_cores.yaml"
SIZES = (2, 4, 8, 16, 32, 64, 128)
ROUNDS = 5  # iterations that are simulated for a mean
NOTHING = 1e-12


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(
        description="Simulate iterations with 2 to 128 workers from the traces of a scaling benchmark.",
        examples=("benchmarks/iteration_simulation.py benchmarks/results/scaling-1",),
        quiet=False,
    )
    parser.add_argument("directory", type=Path, help="results of benchmarks/scaling.py --trace")
    for line in report(parser.parse_args(arguments).directory):
        print(printable(line))


def report(directory: Path) -> list[str]:
    try:
        return _report(directory)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{directory}: not the results of benchmarks/scaling.py ({error!r})") from None


def _report(directory: Path) -> list[str]:
    summary = read_object(directory / "summary.json", [])
    if not summary:
        raise InputError(f"{directory} has no summary.json; expected the results of benchmarks/scaling.py")
    cores, warmup, sizes = summary["cores"], summary["warmup"], summary["sizes"]
    settings = read_settings(file=directory / "config.yaml", flags={})
    pieces, steps = pieces_of(settings), settings.sizes.steps_per_iteration
    alone = [SizedRun(load_run(path), 1, 1) for path in sorted((directory / "runs").glob("w1_r*/"))]
    full = max((row["world_size"] for row in sizes if row["has_cores"]), default=1)
    if not alone:
        raise InputError(f"{directory} has no run with 1 worker; add 1 to --world-sizes")
    smallest = mean_iteration(alone, 1, warmup=warmup, cores=cores, pieces=pieces)
    costs = measured_costs(smallest, _traces(directory, 1), _traces(directory, full), warmup)
    if costs is None:
        raise InputError(f"{directory} has no traces; run benchmarks/scaling.py with --trace")
    lines = ["SIMULATED, not measured."]
    for row in sizes:
        size, fps = row["world_size"], row["fps"]
        chosen = costs[0] if size == 1 else costs[1]
        found = steps / simulated_seconds(chosen, pieces, workers=size, cores=cores)
        lines.append(
            f"{count(size, 'worker')}: simulated {found:,.0f} steps/s, measured {fps:,.0f} ({found / fps - 1:+.1%})"
        )
    return [*lines, *efficiencies(costs, pieces, steps)]


def efficiencies(costs: tuple[Costs, Costs], pieces: Pieces, steps: int) -> list[str]:
    """With one core for each worker; the coordinator's own work grows with the samples, at most."""
    many = load_settings(file=MANY_CORES, flags={})
    shapes = (
        ("this shape", pieces, 1.0),
        (MANY_CORES.name, pieces_of(many), many.sizes.steps_per_iteration / steps),
    )
    lines = []
    for name, shape, factor in shapes:
        one, several = (each._replace(rest=each.rest * factor) for each in costs)
        base = simulated_seconds(one, shape, workers=1, cores=1)
        shares = [
            f"{size}: {base / size / simulated_seconds(several, shape, workers=size, cores=size):.0%}"
            for size in SIZES
        ]
        lines.append(f"SIMULATED efficiency, not measured, {name}: {', '.join(shares)}")
    return lines


# --- the simulation -----------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """Measured seconds; of slices and microbatches every single one, which is their spread."""

    slices: tuple[float, ...]
    microbatches: tuple[float, ...]
    claim: float  # from one microbatch to the next
    reduce: float  # of all microbatches of a minibatch, on one core
    rest: float  # of an iteration: the coordinator, its optimizer and everything that waits for it


def costs_of(
    iteration: Iteration,
    *,
    slices: Sequence[float],
    microbatches: Sequence[float],
    claim: float,
    reduce: float,
) -> Costs:
    """The part of a one-worker iteration that its pieces do not explain does not divide."""
    pieces = iteration.pieces
    microbatch_seconds = pieces.microbatches * (fmean(microbatches) + claim)
    explained = pieces.slices * fmean(slices) + pieces.updates * (microbatch_seconds + reduce)
    return Costs(tuple(slices), tuple(microbatches), claim, reduce, max(0.0, iteration.total - explained))


def simulated_seconds(costs: Costs, pieces: Pieces, *, workers: int, cores: int) -> float:
    """The mean iteration with so many workers."""
    draw = Random(1)
    return fmean(_one(costs, pieces, workers, cores, draw) for _ in range(ROUNDS))


def _one(costs: Costs, pieces: Pieces, workers: int, cores: int, draw: Random) -> float:
    bounds = [index * pieces.slices // workers for index in range(workers + 1)]
    dealt = [draw.choices(costs.slices, k=end - first) for first, end in pairwise(bounds)]
    seconds = costs.rest + _last_end(dealt, [], cores)
    for _ in range(pieces.updates):
        microbatches = [
            microbatch + costs.claim for microbatch in draw.choices(costs.microbatches, k=pieces.microbatches)
        ]
        seconds += _last_end([[] for _ in range(workers)], microbatches, cores) + costs.reduce / min(
            workers, cores
        )
    return seconds


def _last_end(dealt: list[list[float]], common: list[float], cores: int) -> float:
    """When the last worker is done: each does its own pieces, then takes from the common ones."""
    now, left = 0.0, dict[int, float]()
    while True:
        for worker, own in enumerate(dealt):
            if worker not in left and (own or common):
                left[worker] = (own or common).pop()
        if not left:
            return now
        step = min(left.values())
        now += step * max(1.0, len(left) / cores)
        left = {worker: rest - step for worker, rest in left.items() if rest - step > NOTHING}


# --- costs from traces --------------------------------------------------------------------------------------


class Traced(NamedTuple):
    """Seconds of the pieces of work in traces, without the warm-up."""

    slices: list[float]
    microbatches: list[float]
    gaps: list[float]  # between the end of a microbatch and the start of the next on the same worker
    reduces: list[float]  # of all microbatches of a minibatch, added up over the workers that share them


def _traces(directory: Path, size: int) -> list[Path]:
    return sorted((directory / "runs").glob(f"w{size}_r*/trace-*.json"))


def measured_costs(
    smallest: Iteration, alone: Sequence[Path], together: Sequence[Path], warmup: int
) -> tuple[Costs, Costs] | None:
    """Of one worker, and of workers that share the caches and the memory of a machine with all cores busy;
    None without traces of one worker.
    """
    seen, shared = traced(alone, warmup), traced(together, warmup)
    if not seen.slices or not seen.microbatches:
        return None
    claim, reduce = _mean_or_nothing(seen.gaps), _mean_or_nothing(seen.reduces)
    costs = costs_of(smallest, slices=seen.slices, microbatches=seen.microbatches, claim=claim, reduce=reduce)
    if not shared.slices or not shared.microbatches:
        return costs, costs
    return costs, costs._replace(
        slices=tuple(shared.slices),
        microbatches=tuple(shared.microbatches),
        claim=_mean_or_nothing(shared.gaps),
        reduce=_mean_or_nothing(shared.reduces),
    )


def traced(paths: Sequence[Path], warmup: int) -> Traced:
    found = Traced([], [], [], [])
    for path in paths:
        events = [event for event in read_events(path) if event.get("cat") == "task"]
        collects, microbatches, reduces = (
            [event for event in events if event["name"] in names]
            for names in ([COLLECT], [GRADIENT], STAGE_NAMES.values())
        )
        warm = warmup + min((event["args"]["iteration"] for event in collects), default=0)
        microbatches = [event for event in microbatches if event["args"]["iteration"] >= warm]
        found.slices.extend(_seconds(event) for event in collects if event["args"]["iteration"] >= warm)
        found.microbatches.extend(_seconds(event) for event in microbatches)
        for before, after in pairwise(sorted(microbatches, key=lambda event: (event["tid"], event["ts"]))):
            if _place(before) == _place(after):
                found.gaps.append(max(0.0, after["ts"] - before["ts"] - before["dur"]) / 1e6)
        steps = sum(event["name"] == STAGE_NAMES[SUM] and event["args"]["number"] == 0 for event in reduces)
        found.reduces.extend([sum(_seconds(event) for event in reduces) / steps] if steps else [])
    return found


def _seconds(event: dict[str, Any]) -> float:
    return float(event["dur"]) / 1e6


def _place(event: dict[str, Any]) -> tuple[int, ...]:
    """Microbatches of one optimizer step follow each other without a pause for the optimizer."""
    step, *_ = event["args"]["detail"]
    return event["tid"], event["args"]["iteration"], step


def _mean_or_nothing(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


if __name__ == "__main__":
    run(main)
