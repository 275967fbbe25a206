#!/usr/bin/env python
"""Measure throughput over the number of workers, and say what limits it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from parallel_ppo.commands.training_flags import shipped_config  # noqa: E402
from parallel_ppo.envs.build import probe  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.machine.placement import plan_placement  # noqa: E402
from parallel_ppo.machine.resources import read_machine  # noqa: E402
from parallel_ppo.reports import command_line  # noqa: E402
from parallel_ppo.reports.runs import load_run  # noqa: E402
from parallel_ppo.reports.scaling import SizedRun  # noqa: E402
from parallel_ppo.reports.scaling_report import build_report, print_report, write_report  # noqa: E402
from parallel_ppo.reports.trainer import train  # noqa: E402
from parallel_ppo.settings.layers import load_settings, to_yaml  # noqa: E402
from parallel_ppo.settings.schema import Settings  # noqa: E402
from parallel_ppo.training.planning import resolve_policy  # noqa: E402
from parallel_ppo.training.worker_count import pieces_of  # noqa: E402

EXAMPLES = (
    "benchmarks/scaling.py --world-sizes 1,2,4 --repeats 3",
    "benchmarks/scaling.py --world-sizes 1,2 --repeats 2 --policy nature --num-envs 32 --rollout-steps 64 "
    "--total-iters 12",
)


def main() -> int:
    flags = _parser().parse_args()
    sizes = _checked_sizes(flags)
    settings = checked_settings(flags)
    directory = _output_directory(flags.output_dir)
    (directory / "config.yaml").write_text(to_yaml(settings))
    console = Console()
    console.print(
        f"{len(sizes)} sizes x {flags.repeats} repeats of {flags.total_iters} iterations, interleaved, into {escape(str(directory))}",
        soft_wrap=True,
    )
    runs = _run_all(flags, sizes, directory, console)
    cores = plan_placement(read_machine(), num_workers=None, pinning="none").num_workers
    report = build_report(runs, warmup=flags.warmup_iters, cores=cores, pieces=pieces_of(settings.shape))
    written = write_report(report, runs, directory)
    print_report(console, report)
    console.print("wrote " + ", ".join(escape(str(path)) for path in written), soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = command_line.parser(description=str(__doc__), examples=EXAMPLES)
    cores = len(os.sched_getaffinity(0))
    default_sizes = ",".join(str(2**power) for power in range(cores.bit_length()))
    result.add_argument(
        "--world-sizes", default=default_sizes, help="numbers of workers (default: %(default)s)"
    )
    result.add_argument("--repeats", type=int, default=3, help="runs of each size (default: %(default)s)")
    result.add_argument(
        "--output-dir", help="where to write (default: the next free benchmarks/results/scaling-N)"
    )
    result.add_argument("--env-id", default="coinrun", help="environment (default: %(default)s)")
    result.add_argument(
        "--total-iters", type=int, default=12, help="iterations of a run (default: %(default)s)"
    )
    result.add_argument(
        "--warmup-iters", type=int, default=2, help="of these, left out (default: %(default)s)"
    )
    result.add_argument(
        "--rollout-steps", type=int, default=128, help="steps per environment (default: %(default)s)"
    )
    result.add_argument(
        "--num-envs", type=int, default=32, help="environments in total (default: %(default)s)"
    )
    result.add_argument("--epochs", type=int, default=4, help="epochs (default: %(default)s)")
    result.add_argument(
        "--minibatches", type=int, default=4, help="minibatches per epoch (default: %(default)s)"
    )
    result.add_argument("--policy", default="auto", help="impala, nature, mlp or (default) auto: what fits")
    result.add_argument("--seed", type=int, default=1, help="seed of every run (default: %(default)s)")
    return result


def _checked_sizes(flags: argparse.Namespace) -> list[int]:
    for name in ("repeats", "total_iters", "rollout_steps", "num_envs", "epochs", "minibatches"):
        if getattr(flags, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(flags, name)}: expected at least 1")
    if not 0 <= flags.warmup_iters < flags.total_iters:
        raise InputError(
            f"--warmup-iters {flags.warmup_iters}: expected 0 to {flags.total_iters - 1} (--total-iters less 1)"
        )
    samples = flags.num_envs * flags.rollout_steps
    if samples % flags.minibatches:
        raise InputError(
            f"--minibatches {flags.minibatches}: {flags.num_envs} x {flags.rollout_steps} = {samples} samples do not divide by it"
        )
    sizes = sorted(set(command_line.number_list(flags.world_sizes, flag="--world-sizes")))
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


def _output_directory(given: str | None) -> Path:
    if given is None:
        base = PROJECT / "benchmarks" / "results"
        number = next(index for index in range(1, 10**6) if not (base / f"scaling-{index}").exists())
        return command_line.make_directory(base / f"scaling-{number}")
    directory = command_line.make_directory(Path(given))
    if (directory / "runs").exists():
        raise InputError(f"{directory} holds another benchmark; give --output-dir a new name")
    return directory


def _run_all(
    flags: argparse.Namespace, sizes: list[int], directory: Path, console: Console
) -> list[SizedRun]:
    """Every size once, then every size again: a machine that slows down slows all of them."""
    steps = flags.num_envs * flags.rollout_steps * flags.total_iters
    runs = []
    with command_line.progress_bar(console) as progress:
        task = progress.add_task("", total=flags.repeats * len(sizes) * flags.total_iters)
        done = 0
        for repeat in range(1, flags.repeats + 1):
            for size in sizes:
                target = directory / "runs" / f"w{size}_r{repeat}"
                command_line.make_directory(target.parent)
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
    command_line.run(main)
