#!/usr/bin/env python
"""Find the workers and the pinning that train fastest on this machine with your game and network, in about a minute."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parallel_ppo.commands import train
from parallel_ppo.envs.build import probe
from parallel_ppo.exits import InputError, RunError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.settings.layers import load_settings, to_yaml
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.training.planning import resolve_policy

ROOT = Path(__file__).resolve().parents[1]
TRIAL_SECONDS = 3.0  # of training, after the start
WORTHWHILE = 1.02  # a smaller gain is noise: the default stays
CONFIRMATIONS = 2  # more trials of the winner and of the default, in turns
EXAMPLE = "python tools/autotune.py --env starpilot --policy impala --output tuned.yaml, then: python train_parallel_timed.py --config tuned.yaml"


class Candidate(NamedTuple):
    num_workers: int
    pinning: Any
    slice_envs: int
    lane_samples: int


class Trial(NamedTuple):
    candidate: Candidate
    steps_per_second: float | None
    problem: str = ""


Measure = Callable[[Candidate], Trial]


def main() -> int:
    try:
        return tune(build_parser().parse_args())
    except RunError as error:
        print(f"autotune: error: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("autotune: interrupted, nothing was written", file=sys.stderr)
        return 130


def build_parser() -> train.Parser:
    parser = train.Parser(description=__doc__, epilog=f"example: {EXAMPLE}", allow_abbrev=False)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML settings (default: the shipped ones)"
    )
    parser.add_argument("--env", dest="env.id", default=argparse.SUPPRESS, metavar="ENV", help="the game")
    parser.add_argument(
        "--policy", dest="training.policy", default=argparse.SUPPRESS, metavar="POLICY", help="impala, nature, mlp or auto"
    )  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument(
        "--output", type=Path, default=Path("tuned.yaml"), metavar="FILE", help="the YAML to write (default: %(default)s)"
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="start no trial after this time (default: %(default)s)"
    )
    parser.add_argument(
        "--allow-learning-change", action="store_true",
        help="also try env.slice_envs and training.lane_samples, which change the bits of what is learned",
    )  # fmt: skip
    return parser


def tune(arguments: argparse.Namespace) -> int:
    if arguments.output.exists():
        raise InputError(f"--output {arguments.output}: exists already; give another name")
    flags = train.flag_values(arguments)
    file = arguments.config or train.shipped_config(flags.get("env.id"), "parallel")
    settings = load_settings(file=file, flags=flags)
    settings = resolve_policy(settings, probe(settings))
    machine, console, began = read_machine(), Console(), time.monotonic()

    def measure(candidate: Candidate) -> Trial:
        trial = run_trial(settings, candidate)
        rate = f"{trial.steps_per_second:,.1f} steps/s" if trial.steps_per_second else escape(trial.problem)
        console.print(f"[dim]{time.monotonic() - began:4.0f} s[/]  {describe(candidate)}  {rate}")
        return trial

    default = default_candidate(settings, machine)

    def is_over() -> bool:
        return time.monotonic() - began > arguments.seconds

    trials = search(
        default, dimensions(default, settings, machine, arguments.allow_learning_change), measure, is_over
    )
    trials = confirm(trials, measure, is_over)
    best = choose(trials)
    show(console, trials, best)
    write_atomically(arguments.output, tuned_yaml(settings, best, default).encode())
    print(f"wrote {arguments.output}; train with: python train_parallel_timed.py --config {arguments.output}")
    return 0


# --- what is tried --------------------------------------------------------------------------------------------------------


def default_candidate(settings: Settings, machine: Machine) -> Candidate:
    shape = settings.shape
    placement = plan_placement(
        machine, num_workers=None, pinning="auto", max_useful=max(shape.num_slices, shape.num_lanes)
    )
    return Candidate(placement.num_workers, "auto", shape.slice_envs, max(shape.lane_sizes))


def dimensions(
    default: Candidate, settings: Settings, machine: Machine, may_change_learning: bool
) -> list[tuple[str, list[Any]]]:
    """Field by field, the other values worth a try; the likelier gains first."""
    useful = max(settings.shape.num_slices, settings.shape.num_lanes)
    cpus, cores = len(machine.cores), default.num_workers
    workers = {cpus, cores - 1, cores // 2, 2 * cores if cores <= 4 else cpus}
    tried: list[tuple[str, list[Any]]] = [
        ("num_workers", sorted((n for n in workers if 1 <= n <= useful and n != cores), key=lambda n: abs(n - cores))),
        ("pinning", ["none"]),
    ]  # fmt: skip
    if may_change_learning:
        envs, share = settings.env.num_envs, settings.shape.share
        sizes = [
            n for n in (16, 4, 32, 2) if envs % n == 0 and settings.training.batch_size % (envs // n) == 0
        ]
        tried += [
            ("lane_samples", [n for n in (128, 32, 256) if n <= share and n != default.lane_samples]),
            ("slice_envs", [n for n in sizes if n != default.slice_envs]),
        ]  # fmt: skip
    return tried


def search(
    default: Candidate,
    tried: Iterable[tuple[str, list[Any]]],
    measure: Measure,
    is_over: Callable[[], bool],
) -> list[Trial]:
    """One field after the other, each from the best so far. The default comes first and is measured whatever the time."""
    trials = [measure(default)]
    for field, values in tried:
        start = choose(trials).candidate if any(trial.steps_per_second for trial in trials) else default
        for value in values:
            if is_over():
                return trials
            trials.append(measure(start._replace(**{field: value})))
    return trials


def confirm(trials: list[Trial], measure: Measure, is_over: Callable[[], bool]) -> list[Trial]:
    """The default and the winner again in turns, while there is time: on a shared machine single trials differ by more than candidates do."""
    rivals = [trials[0], choose(trials)]
    if rivals[0] is rivals[1] or not rivals[0].steps_per_second:
        return trials
    rates: list[list[float]] = [[rival.steps_per_second or 0.0] for rival in rivals]
    for _ in range(CONFIRMATIONS):
        for rival, found in zip(rivals, rates, strict=True):
            if is_over():
                break
            found.append(measure(rival.candidate).steps_per_second or 0.0)
    settled = {id(rival): statistics.median(found) for rival, found in zip(rivals, rates, strict=True)}
    return [
        trial._replace(steps_per_second=settled.get(id(trial), trial.steps_per_second)) for trial in trials
    ]


def choose(trials: list[Trial]) -> Trial:
    """The fastest; but the first, which is the default, unless the gain is clear."""
    measured = [trial for trial in trials if trial.steps_per_second]
    if not measured:
        raise InputError(f"no trial could be run: {trials[0].problem}")
    best = max(measured, key=lambda trial: trial.steps_per_second or 0.0)
    first = trials[0].steps_per_second
    return trials[0] if first and (best.steps_per_second or 0.0) < WORTHWHILE * first else best


# --- one trial ------------------------------------------------------------------------------------------------------------


def applied(settings: Settings, candidate: Candidate) -> Settings:
    """The user's settings with a candidate's values; learning settings stay untouched where they are the default."""
    shape = settings.shape
    settings = settings.changed("parallel", num_workers=candidate.num_workers, num_envs_per_worker=None)
    settings = settings.changed("hardware", pinning=candidate.pinning, num_threads=1)
    if candidate.slice_envs != shape.slice_envs:
        settings = settings.changed("env", slice_envs=candidate.slice_envs)
    if candidate.lane_samples != max(shape.lane_sizes):
        settings = settings.changed("training", lane_samples=candidate.lane_samples)
    return settings


def shortened(settings: Settings) -> Settings:
    """The same batches, but as few of them as an iteration can have: what a full one takes follows from it."""
    training, envs = settings.training, settings.env.num_envs
    steps = next(n for n in range(1, training.n_steps + 1) if envs * n % training.batch_size == 0)
    settings = settings.changed(
        "training", n_steps=steps, n_epochs=1, total_timesteps=None, duration=TRIAL_SECONDS / 3600, target_kl=None,
        learning_rate_schedule="constant", clip_range_schedule="constant",
    )  # fmt: skip
    return settings.changed("logging", tensorboard=False)


def full_rate(record: dict[str, Any], short: Settings, full: Settings) -> float:
    """Steps per second of a full iteration, from the phases of a short one."""
    collect = record["t_rollout"] * full.shape.num_steps / short.shape.num_steps
    update = (
        record["t_learn"] / short.shape.num_minibatches * full.shape.num_minibatches * full.shape.num_epochs
    )
    rest = record["t_iter"] - record["t_rollout"] - record["t_learn"]
    return full.shape.steps_per_iteration / (collect + update + rest)


def run_trial(settings: Settings, candidate: Candidate) -> Trial:
    full = applied(settings, candidate)
    short = shortened(full)
    with tempfile.TemporaryDirectory(prefix="autotune-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(to_yaml(short))
        command = [sys.executable, str(ROOT / "train_parallel_timed.py"), "--quiet", "--config", str(config),
                   "--output-dir", f"{directory}/run"]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            return Trial(candidate, None, lines[-1] if lines else f"exit code {result.returncode}")
        records = [
            json.loads(line) for line in (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
        ]
    rates = sorted(full_rate(record, short, full) for record in records[1:] or records)
    return Trial(candidate, rates[len(rates) // 2])


# --- what is shown and written --------------------------------------------------------------------------------------------


def describe(candidate: Candidate) -> str:
    return (
        f"{candidate.num_workers} workers, pinning {candidate.pinning}, slices of {candidate.slice_envs}, "
        f"lanes of {candidate.lane_samples}"
    )


def show(console: Console, trials: list[Trial], best: Trial) -> None:
    table = Table("workers", "pinning", "slice_envs", "lane_samples", "steps/s", "")
    for trial in trials:
        rate = f"{trial.steps_per_second:,.1f}" if trial.steps_per_second else escape(trial.problem)
        note = "best" if trial is best else "default" if trial is trials[0] else ""
        table.add_row(*map(str, trial.candidate), rate, note)
    console.print(table)


def tuned_yaml(settings: Settings, best: Trial, default: Candidate) -> str:
    changes = (best.candidate.slice_envs, best.candidate.lane_samples) != (
        default.slice_envs,
        default.lane_samples,
    )
    learning = "learns other bits than the default" if changes else "learns the same bits as the default"
    return (
        f"# Written by tools/autotune.py: {describe(best.candidate)}; estimated {best.steps_per_second:,.1f} steps/s.\n"
        f"# It {learning}.\n" + to_yaml(applied(settings, best.candidate))
    )


if __name__ == "__main__":
    sys.exit(main())
