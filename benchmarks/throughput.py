#!/usr/bin/env python
"""Measure our trainer and its peers on the same work, interleaved in one run on this machine."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from benchmarks import throughput_report as report
from benchmarks.contenders import CONTENDERS, Unavailable, measure, prepare, versions
from benchmarks.processes import clean_environment
from benchmarks.works import COLLECTION, WORKS, Work, mega_flops
from parallel_ppo.arguments import Parser, next_free, number_from, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.reports.command_line import new_directory

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = (
    "benchmarks/throughput.py --work W1 --against sb3,sb3_channels_last,sample_factory,rllib --repeats 3 "
    "--output-dir results",
)
SHAPE = {
    "num_envs": "--num-envs",
    "num_steps": "--n-steps",
    "epochs": "--n-epochs",
    "batch_size": "--batch-size",
}


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    parser.add_argument(
        "--work", choices=[*WORKS, "W4"], default="W1",
        help="W1 starpilot with IMPALA, W2 with the Nature CNN, W3 CartPole, W4 collection in all 16 games, "
        "W5 Nature on stacked frames of 84x84, W6 HalfCheetah, W7 LunarLander (extras mujoco, box2d)",
    )  # fmt: skip
    parser.add_argument(
        "--against", default="sb3", metavar="NAMES",
        help=f"comma-separated contenders beside ours: "
             f"{', '.join(name for name in CONTENDERS if name != 'ours')} (default: %(default)s)",
    )  # fmt: skip
    for flag, kind, default, what in (
        ("--repeats", positive, 3, "runs of each contender"),
        ("--iterations", positive, 2, "measured iterations of a run"),
        ("--warmup", number_from(0), 1, "iterations before them"),
        ("--timeout", positive, 1800, "seconds allowed for one run"),
    ):
        parser.add_argument(
            flag, type=kind, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--output-dir", type=Path, help="default: the next free benchmarks/results/throughput-N"
    )
    for field, flag in SHAPE.items():
        what = "another shape than the stated one; the report says so"
        parser.add_argument(flag, dest=field, type=positive, metavar="N", help=what)
    return parser


def main() -> int:
    arguments = build_parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # contenders must not outlive this process
    default = next_free(f"{ROOT}/benchmarks/results/throughput-{{}}")
    directory = new_directory(arguments.output_dir or default)
    try:
        results = _measure(arguments)
        for path in report.write(directory, results):
            print(f"wrote {path}")
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()  # nothing was written
    return 0


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    machine = read_machine()
    _warn_of_load(machine)
    if arguments.work == "W4":
        from benchmarks.collection import measure_collection

        work = _changed(COLLECTION, arguments)
        results = measure_collection(work, repeats=arguments.repeats, machine=machine)
    else:
        work = _changed(WORKS[arguments.work], arguments)
        results = _measure_all(arguments, work, machine)
    return report.facts(machine, work) | results


def _changed(work: Work, arguments: argparse.Namespace) -> Work:
    given = {field: value for field in SHAPE if (value := getattr(arguments, field)) is not None}
    return work._replace(**given, name=f"{work.name} (another shape)") if given else work


def _measure_all(arguments: argparse.Namespace, work: Work, machine: Machine) -> dict[str, Any]:
    cores = plan_placement(machine, num_workers=None, pinning="none").num_workers
    names, unavailable = _take_part(arguments.against)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    sgemm = []
    for repeat in range(arguments.repeats):
        sgemm.append(_sgemm(cores))
        print(
            f"repeat {repeat + 1} of {arguments.repeats}: sgemm {sgemm[-1]:.0f} GFLOP/s on {cores} cores",
            flush=True,
        )
        shift = repeat % len(names)  # nobody is always first
        for name in names[shift:] + names[:shift]:
            if name in unavailable:
                continue
            load = os.getloadavg()[0]
            try:
                measured = measure(
                    name, work, iterations=arguments.warmup + arguments.iterations, cores=cores,
                    timeout=arguments.timeout,
                )  # fmt: skip
            except Unavailable as problem:
                if name == "ours":
                    raise InputError(f"our own trainer failed: {problem}") from None
                unavailable[name] = str(problem)
                print(f"  {name}: left out, {problem}", flush=True)
                continue
            kept = measured.seconds[arguments.warmup :]
            rate = work.steps * len(kept) / sum(kept)
            runs[name].append({"steps_per_second": rate, "seconds": measured.seconds,
                               "peak_mb": measured.peak_mb,
                               "load_before": load})  # fmt: skip
            print(f"  {name:<22} {rate:8.1f} steps/s  {measured.peak_mb:7.0f} MB", flush=True)
    return {
        "contenders": {
            name: {"runs": runs[name], "versions": versions(name)} for name in names if runs[name]
        },
        "unavailable": unavailable,
        "sgemm_gflops": sgemm,
        "num_cores": cores,
        "mega_flops_per_step": mega_flops(work),
        "warmup": arguments.warmup,
    }  # fmt: skip


def _take_part(against: str) -> tuple[list[str], dict[str, str]]:
    names = [
        "ours",
        *dict.fromkeys(name.strip() for name in against.split(",") if name.strip() not in ("", "ours")),
    ]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise InputError(f"--against: unknown contender {unknown[0]!r}; known are {', '.join(CONTENDERS)}")
    unavailable = {}
    for name in names:
        try:
            prepare(name)
        except Unavailable as problem:
            unavailable[name] = str(problem)
            print(f"{name}: left out, {problem}", flush=True)
    return names, unavailable


def _sgemm(cores: int) -> float:
    command = [sys.executable, str(ROOT / "benchmarks" / "sgemm.py"), str(cores)]
    return float(
        subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True).stdout
    )


def _warn_of_load(machine: Machine) -> None:
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"warning: other programs use this machine (load {load:.1f} on {len(machine.cores)} CPUs); "
            "figures will be low and noisy"
        )


if __name__ == "__main__":
    run(main)
