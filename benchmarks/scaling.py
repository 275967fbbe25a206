#!/usr/bin/env python
"""Measure throughput with 1, 2, ... workers, and report what limits it."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from parallel_ppo.arguments import Parser, next_free, number_from, number_list, positive, run
from parallel_ppo.child import command
from parallel_ppo.commands.training_flags import flag_values, shipped_config
from parallel_ppo.envs.families import probe
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration, Pieces, from_records, limited_by
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.printable import count
from parallel_ppo.reports.command_line import make_directory, new_directory, shown
from parallel_ppo.reports.comparison import busy_machine
from parallel_ppo.reports.curves import peak_memory_mb, timing
from parallel_ppo.reports.document import Document, Row, Table, as_text, print_document, to_csv, to_json
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.runs import METRICS, Run, load_run
from parallel_ppo.reports.theme import save
from parallel_ppo.reports.trainer import train
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.files import write_atomically, write_durably
from parallel_ppo.training.planning import resolve_policy
from parallel_ppo.training.worker_count import pieces_of

PROJECT = Path(__file__).resolve().parents[1]
EXAMPLES = (
    "benchmarks/scaling.py --world-sizes 1,2,4 --repeats 3",
    "benchmarks/scaling.py --policy nature --rollout-steps 64 --trace",
)
TIMES = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_coordinator", "idle_share")
COLLECT, UPDATE, REST = "#0072b2", "#e69f00", "#999999"


class SizedRun(NamedTuple):
    """A run of the benchmark and its place in it."""

    run: Run
    world_size: int
    repeat: int


def main() -> int:
    flags = build_parser().parse_args()
    sizes = checked_sizes(flags)
    settings = checked_settings(flags)
    directory = new_directory(flags.output_dir or next_free(f"{PROJECT}/benchmarks/results/scaling-{{}}"))
    write_durably(directory / "config.yaml", to_yaml(settings).encode())
    cores = plan_placement(read_machine(), num_workers=None, pinning="none").num_workers
    full = max((size for size in sizes if size <= cores), default=1)
    runs = run_all(flags, sizes, {1, full} if flags.trace else set(), directory)
    report = build_report(runs, warmup=flags.warmup_iters, cores=cores, pieces=pieces_of(settings))
    write_report(report, runs, directory)
    console = Console()
    print_document(console, report)
    console.print(f"wrote {shown(directory)}", soft_wrap=True)
    return 0


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    add = parser.add_argument
    sizes = ",".join(str(2**power) for power in range(len(os.sched_getaffinity(0)).bit_length()))
    add("--world-sizes", default=sizes, metavar="N,..", help="numbers of workers (default: %(default)s)")
    add("--output-dir", type=Path, metavar="DIR", help="default: the next free benchmarks/results/scaling-N")
    add("--env-id", default="coinrun", metavar="ENV", help="environment (default: %(default)s)")
    add("--policy", default="auto", metavar="NAME", help="network (default: the one that fits)")
    for flag, kind, default, what in (
        ("--repeats", positive, 3, "runs of each size"),
        ("--total-iters", positive, 12, "iterations of a run"),
        ("--warmup-iters", number_from(0), 2, "iterations left out at the start"),
        ("--rollout-steps", positive, 128, "steps per environment"),
        ("--num-envs", positive, 32, "environments in total"),
    ):
        add(flag, type=kind, default=default, metavar="N", help=f"{what} (default: {default})")
    add("--set", action="append", default=[], metavar="KEY=VALUE",
        help="any other setting (default: 4 epochs of 4 minibatches, seed 1)")  # fmt: skip
    add("--trace", action="store_true",
        help="trace 1 worker and all cores, for benchmarks/iteration_simulation.py")  # fmt: skip
    return parser


def checked_sizes(flags: argparse.Namespace) -> list[int]:
    if flags.warmup_iters >= flags.total_iters:
        raise InputError(
            f"--warmup-iters {flags.warmup_iters}: expected less than --total-iters {flags.total_iters}"
        )
    sizes = sorted(set(number_list(flags.world_sizes, flag="--world-sizes")))
    if sizes[0] < 1:
        raise InputError(f"--world-sizes {flags.world_sizes}: expected numbers of workers from 1 on")
    return sizes


def checked_settings(flags: argparse.Namespace) -> Settings:
    """The settings of every run, checked before a folder is made."""
    samples = flags.num_envs * flags.rollout_steps
    given = {
        "env.id": flags.env_id,
        "env.num_envs": flags.num_envs,
        "training.n_steps": flags.rollout_steps,
        "training.batch_size": samples // 4,
        "training.n_epochs": 4,
        "training.total_timesteps": samples * flags.total_iters,
        "training.policy": flags.policy,
        "training.seed": 1,
        **flag_values(flags),
    }
    settings = load_settings(file=shipped_config(flags.env_id, "parallel"), flags=given)
    return resolve_policy(settings.changed("training", duration=None), probe(settings))


def run_all(flags: argparse.Namespace, sizes: list[int], traced: set[int], directory: Path) -> list[SizedRun]:
    """Every size once, then every size again: a machine that slows down slows all of them."""
    make_directory(directory / "runs")
    runs = []
    for repeat in range(1, flags.repeats + 1):
        for size in sizes:
            target = directory / "runs" / f"w{size}_r{repeat}"
            trace = ["--trace"] if size in traced else []
            train(
                [*command("train"), "--config", str(directory / "config.yaml"), "--num-workers", str(size),
                 "--output-dir", str(target), "--quiet", *trace],
                run_directory=target, output=target.with_suffix(".log"),
            )  # fmt: skip
            runs.append(SizedRun(load_run(target), size, repeat))
            print(f"{count(size, 'worker')}, repeat {repeat} of {flags.repeats}: done", flush=True)
    return runs


# --- numbers ------------------------------------------------------------------------------------------------


def measure(item: SizedRun, warmup: int) -> dict[str, Any]:
    """One run without its warm-up; times are means per iteration in seconds."""
    kept = timing(item.run, skip=warmup)
    return {
        "world_size": item.world_size,
        "repeat": item.repeat,
        "iterations": len(kept.seconds),
        "steps_per_iteration": float(kept.steps.mean()),
        "fps": kept.throughput,
        **{name: column_mean([item.run], warmup, name) for name in TIMES},
        "peak_rss_mb": peak_memory_mb([item.run]),
        "policy_sha256": item.run.policy_sha256[-1] or "",
    }


def column_mean(runs: Sequence[Run], warmup: int, name: str) -> float:
    """Without values that were not measured. An iteration lasts until the next one begins."""
    columns = [run.iteration_seconds() if name == "t_iter" else run.column(name) for run in runs]
    values = np.concatenate([column[warmup:] for column in columns])
    values = values[np.isfinite(values) & ((values > 0) | (name != "cpu_percent"))]
    return float(values.mean()) if values.size else float("nan")


def mean_iteration(
    runs: Sequence[SizedRun], size: int, *, warmup: int, cores: int, pieces: Pieces
) -> Iteration:
    of_size = [item.run for item in runs if item.world_size == size]
    return from_records(partial(column_mean, of_size, warmup), pieces, workers=size, cores=cores)


def summarize(measured: Sequence[dict[str, Any]], cores: int) -> list[dict[str, Any]]:
    """The sizes in order: means of the repeats, with the lowest and the highest."""
    sizes = sorted({row["world_size"] for row in measured})
    base = {row["repeat"]: row["fps"] for row in measured if row["world_size"] == sizes[0]}
    summary = []
    for size in sizes:
        repeats = [row for row in measured if row["world_size"] == size]
        speeds = [row["fps"] for row in repeats]
        ratios = [row["fps"] / base[row["repeat"]] for row in repeats]
        speedup = float(np.mean(speeds) / np.mean(list(base.values())))
        summary.append({
            "world_size": size, "repeats": len(repeats), "has_cores": size <= cores,
            "fps": float(np.mean(speeds)), "fps_low": min(speeds), "fps_high": max(speeds),
            "speedup": speedup, "speedup_low": min(ratios), "speedup_high": max(ratios),
            "efficiency": speedup * sizes[0] / size,
            **{name: float(np.mean([row[name] for row in repeats])) for name in TIMES},
            "peak_rss_mb": max(row["peak_rss_mb"] for row in repeats),
        })  # fmt: skip
    return summary


# --- the report ---------------------------------------------------------------------------------------------


def build_report(runs: Sequence[SizedRun], *, warmup: int, cores: int, pieces: Pieces) -> Document:
    if any(len(item.run) <= warmup for item in runs):
        raise InputError("a run has only warm-up iterations; raise --total-iters")
    measured = [measure(item, warmup) for item in runs]
    sizes = summarize(measured, cores)
    fitting = [size for size in sizes if size["has_cores"]] or sizes[:1]
    best = max(fitting, key=lambda size: size["speedup"])
    largest = fitting[-1]["world_size"]
    iteration = mean_iteration(runs, largest, warmup=warmup, cores=cores, pieces=pieces)
    notes = [f"With {count(largest, 'worker')} limited by {limited_by(iteration)}."]
    beyond = [str(size["world_size"]) for size in sizes if not size["has_cores"]]
    notes += [f"{', '.join(beyond)} workers are more than the {cores} physical cores."] if beyond else []
    warnings = busy_machine(Group("", tuple(item.run for item in runs)))
    hashes = {row["policy_sha256"] for row in measured if row["policy_sha256"]}
    if len(hashes) > 1:
        warnings.append(
            f"{len(hashes)} different policy_sha256 in {len(runs)} runs: parameters are NOT bit-identical"
        )
    first = runs[0].run
    return Document(
        headline=f"{short_env(first.env_id)}: {best['fps']:,.0f} steps/s with"
        f" {count(best['world_size'], 'worker')}, {best['speedup']:.2f}x",
        subtitle=f"network {first.word('training.policy')} | {first.word('env.num_envs')} environments x"
        f" {first.word('training.n_steps')} steps | epochs {first.word('training.n_epochs')}, minibatch"
        f" {first.word('training.batch_size')} | {first.cpu_model}, {count(cores, 'physical core')}",
        warnings=warnings,
        tables=[_table(sizes)],
        notes=notes,
        footnotes=["In parentheses: the slowest and the fastest repeat."],
        data={"cores": cores, "warmup": warmup, "sizes": sizes, "runs": measured, "sentences": notes},
    )  # fmt: skip


def _table(sizes: Sequence[dict[str, Any]]) -> Table:
    header = ("workers", "steps/s", "speedup", "efficiency", "collect", "update", "coordinator")
    return Table("Measured", header, [
        Row.of(f"{size['world_size']}{'' if size['has_cores'] else ' (> cores)'}", [
            f"{size['fps']:,.0f} ({size['fps_low']:,.0f} to {size['fps_high']:,.0f})",
            f"{size['speedup']:.2f}x",
            f"{size['efficiency']:.0%}",
            f"{size['t_rollout'] / size['t_iter']:.0%}",
            f"{size['t_learn'] / size['t_iter']:.0%}",
            f"{size['t_coordinator'] / size['t_iter']:.1%}",
        ])
        for size in sizes
    ])  # fmt: skip


def write_report(report: Document, runs: Sequence[SizedRun], directory: Path) -> None:
    logs = make_directory(directory / "logs")
    for item in runs:
        log = logs / f"w{item.world_size}_r{item.repeat}.jsonl"
        write_atomically(log, (item.run.path / METRICS).read_bytes())
    texts = {
        "per_run.csv": to_csv(report.data["runs"]),
        "summary.csv": to_csv(report.data["sizes"]),
        "summary.json": to_json(report.data),
        "report.txt": as_text(report),
    }
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    save(picture(report), directory / "plots.png")


def picture(report: Document) -> Figure:
    """Throughput and speedup with a point for each repeat, and the seconds of an iteration."""
    sizes, measured = report.data["sizes"], report.data["runs"]
    names = [str(size["world_size"]) for size in sizes]
    places = {size["world_size"]: place for place, size in enumerate(sizes)}
    base = {row["repeat"]: row["fps"] for row in measured if row["world_size"] == sizes[0]["world_size"]}
    figure = Figure(figsize=(13, 4), layout="constrained")
    speed, speedup, seconds = figure.subplots(1, 3)
    alphas = [0.85 if size["has_cores"] else 0.35 for size in sizes]
    for axes, column, label in (
        (speed, "fps", "steps per second"),
        (speedup, "speedup", "speedup (dotted: ideal)"),
    ):
        for name, size, alpha in zip(names, sizes, alphas, strict=True):
            axes.bar(name, size[column], width=0.5, color=COLLECT, alpha=alpha)
        values = [row["fps"] / (1 if column == "fps" else base[row["repeat"]]) for row in measured]
        axes.plot([places[row["world_size"]] for row in measured], values, "o", color="black", markersize=4)
        axes.set(xlabel="workers", ylabel=label)
    ideal = [size["world_size"] / sizes[0]["world_size"] for size in sizes]
    speedup.plot(range(len(sizes)), ideal, ":", color="black")
    bottom = np.zeros(len(sizes))
    rest = [size["t_iter"] - size["t_rollout"] - size["t_learn"] for size in sizes]
    phases = ("collect", COLLECT, [size["t_rollout"] for size in sizes]), ("update", UPDATE,
              [size["t_learn"] for size in sizes]), ("other", REST, [max(0.0, value) for value in rest])  # fmt: skip
    for name, color, heights in phases:
        seconds.bar(names, heights, width=0.5, bottom=bottom, color=color, label=name)
        bottom += heights
    seconds.set(xlabel="workers", ylabel="seconds per iteration")
    seconds.legend()
    figure.suptitle(report.headline, x=0.01, ha="left")
    figure.supxlabel(report.subtitle, x=0.01, ha="left", fontsize=8)
    return figure


if __name__ == "__main__":
    run(main)
