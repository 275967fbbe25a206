#!/usr/bin/env python
"""Measure throughput over the number of workers, and report what limits it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from rich.console import Console

from benchmarks.scaling_report import SizedRun, build_report, write_report
from parallel_ppo.arguments import Parser, next_free, number_from, number_list, positive, run
from parallel_ppo.commands.training_flags import shipped_config
from parallel_ppo.envs.families import probe
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.reports.command_line import make_directory, new_directory, progress_bar, shown
from parallel_ppo.reports.document import print_document
from parallel_ppo.reports.runs import load_run
from parallel_ppo.reports.trainer import train
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.files import write_durably
from parallel_ppo.training.planning import resolve_policy
from parallel_ppo.training.worker_count import pieces_of

PROJECT = Path(__file__).resolve().parents[1]
EXAMPLES = (
    "benchmarks/scaling.py --world-sizes 1,2,4 --repeats 3",
    "benchmarks/scaling.py --world-sizes 1,2 --repeats 2 --policy nature --num-envs 32 --rollout-steps 64 "
    "--total-iters 12",
)


def main() -> int:
    flags = _parser().parse_args()
    sizes = _checked_sizes(flags)
    settings = checked_settings(flags)
    directory = new_directory(flags.output_dir or next_free(f"{PROJECT}/benchmarks/results/scaling-{{}}"))
    write_durably(directory / "config.yaml", to_yaml(settings).encode())
    console = Console()
    console.print(
        f"{len(sizes)} sizes x {flags.repeats} repeats of {flags.total_iters} iterations, interleaved, into "
        f"{shown(directory)}",
        soft_wrap=True,
    )
    cores = plan_placement(read_machine(), num_workers=None, pinning="none").num_workers
    full = max((size for size in sizes if size <= cores), default=1)
    traced = {1, full} if flags.trace else set()
    runs = _run_all(flags, sizes, traced, directory, console)
    report = build_report(runs, warmup=flags.warmup_iters, cores=cores, pieces=pieces_of(settings))
    written = write_report(report, runs, directory)
    print_document(console, report)
    console.print("wrote " + ", ".join(shown(path) for path in written), soft_wrap=True)
    return 0


def _parser() -> Parser:
    result = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    sizes = ",".join(str(2**power) for power in range(len(os.sched_getaffinity(0)).bit_length()))
    result.add_argument("--world-sizes", default=sizes, help="numbers of workers (default: %(default)s)")
    result.add_argument(
        "--output-dir", type=Path, help="where to write (default: the next free benchmarks/results/scaling-N)"
    )
    result.add_argument("--env-id", default="coinrun", help="environment (default: %(default)s)")
    result.add_argument("--policy", default="auto", help="impala, nature, mlp or (default) auto: what fits")
    for flag, kind, default, what in (
        ("--repeats", positive, 3, "runs of each size"),
        ("--total-iters", positive, 12, "iterations of a run"),
        ("--warmup-iters", number_from(0), 2, "of these, left out"),
        ("--rollout-steps", positive, 128, "steps per environment"),
        ("--num-envs", positive, 32, "environments in total"),
        ("--epochs", positive, 4, "epochs"),
        ("--minibatches", positive, 4, "minibatches per epoch"),
        ("--seed", number_from(0), 1, "seed of every run"),
    ):
        result.add_argument(
            flag, type=kind, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    result.add_argument(
        "--trace",
        action="store_true",
        help="trace 1 worker and all cores, for benchmarks/iteration_simulation.py",
    )
    return result


def _checked_sizes(flags: argparse.Namespace) -> list[int]:
    if flags.warmup_iters >= flags.total_iters:
        raise InputError(
            f"--warmup-iters {flags.warmup_iters}: expected 0 to {flags.total_iters - 1} (--total-iters "
            "less 1)"
        )
    samples = flags.num_envs * flags.rollout_steps
    if samples % flags.minibatches:
        raise InputError(
            f"--minibatches {flags.minibatches}: {flags.num_envs} x {flags.rollout_steps} = {samples} "
            "samples do not divide by it"
        )
    sizes = sorted(set(number_list(flags.world_sizes, flag="--world-sizes")))
    if sizes[0] < 1:
        raise InputError(f"--world-sizes {flags.world_sizes}: expected numbers of workers from 1 on")
    return sizes


def checked_settings(flags: argparse.Namespace) -> Settings:
    """What every run gets; refused here, before there is a folder."""
    samples = flags.num_envs * flags.rollout_steps
    given = {
        "env.id": flags.env_id,
        "env.num_envs": flags.num_envs,
        "training.n_steps": flags.rollout_steps,
        "training.batch_size": samples // flags.minibatches,
        "training.n_epochs": flags.epochs,
        "training.total_timesteps": samples * flags.total_iters,
        "training.policy": flags.policy,
        "training.seed": flags.seed,
    }
    settings = load_settings(file=shipped_config(flags.env_id, "parallel"), flags=given)
    return resolve_policy(settings.changed("training", duration=None), probe(settings))


def _run_all(
    flags: argparse.Namespace, sizes: list[int], traced: set[int], directory: Path, console: Console
) -> list[SizedRun]:
    """Every size once, then every size again: a machine that slows down slows all of them."""
    steps = flags.num_envs * flags.rollout_steps * flags.total_iters
    runs = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=flags.repeats * len(sizes) * flags.total_iters)
        done = 0
        for repeat in range(1, flags.repeats + 1):
            for size in sizes:
                target = directory / "runs" / f"w{size}_r{repeat}"
                make_directory(target.parent)
                progress.update(task, description=f"{size} worker(s), repeat {repeat}")

                def show(steps_done: int, _seconds: float, done: int = done) -> None:
                    progress.update(task, completed=done + steps_done * flags.total_iters / steps)

                output = directory / "runs" / f"w{size}_r{repeat}.log"
                train(
                    [
                        "--config",
                        str(directory / "config.yaml"),
                        "--num-workers",
                        str(size),
                        "--output-dir",
                        str(target),
                        "--quiet",
                        *(["--trace"] if size in traced else []),
                    ],
                    project=PROJECT,
                    run_directory=target,
                    output=output,
                    on_progress=show,
                )
                done += flags.total_iters
                runs.append(SizedRun(load_run(target), world_size=size, repeat=repeat))
                if not console.is_terminal:
                    console.print(f"{size} worker(s), repeat {repeat}: done")
    return runs


if __name__ == "__main__":
    run(main)
