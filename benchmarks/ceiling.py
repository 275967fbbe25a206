#!/usr/bin/env python
"""How much faster this machine makes processes that share nothing: the bound for what more workers can bring.

    python benchmarks/ceiling.py --rounds 8

Each process computes the gradients of lanes, as a worker does in the update, with no message, no memory and
no waiting in common. In every round each runs alone, then all at once. What is lost here is lost to the
machine: shared caches and memory, clock rates, other guests of the host.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
from parallel_ppo.arguments import Parser, number, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.choice import NETWORKS, unusable
from parallel_ppo.machine.placement import plan_placement, set_thread_variables
from parallel_ppo.machine.resources import read_machine

LANE = 64
ANYWHERE = -1  # a process that may not be pinned


class Process:
    def __init__(self, policy: str, cpu: int) -> None:
        command = [sys.executable, __file__, "--policy", policy, "--compute-on", str(cpu)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.answer()

    def go(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")

    def answer(self) -> float:
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def image_of(policy: str) -> tuple[int, int, int]:
    side = NETWORKS[policy].usual_side
    return side, side, 3


def compute(policy: str, cpu: int) -> None:
    """For every number of seconds on standard input: samples per second over that time."""
    if cpu != ANYWHERE:
        os.sched_setaffinity(0, {cpu})
    set_thread_variables()
    import torch

    from parallel_ppo.kernels.native import NativeTrunk, parameter_shapes

    image = image_of(policy)
    torch.manual_seed(0)
    parameters = [(torch.rand(shape) * 2 - 1) * 0.05 for shape in parameter_shapes(policy, image)]
    gradients = [torch.empty_like(parameter) for parameter in parameters]
    observation = torch.randint(0, 256, (LANE, *image), dtype=torch.uint8)
    trunk = NativeTrunk(policy, image)
    slope = torch.randn(LANE, trunk.num_features)
    trunk.load(parameters, training=True)
    print(0.0, flush=True)
    for line in sys.stdin:
        began, lanes = time.monotonic(), 0
        while time.monotonic() - began < float(line):
            features, activations = trunk.forward(observation)
            trunk.backward(observation, features, activations, slope, gradients)
            lanes += 1
        print(lanes * LANE / (time.monotonic() - began), flush=True)


def measure(processes: list[Process], seconds: float) -> tuple[list[float], list[float]]:
    """Samples per second of each process alone, and of each beside the others."""
    alone = []
    for process in processes:
        process.go(seconds)
        alone.append(process.answer())
    for process in processes:
        process.go(seconds)
    return alone, [process.answer() for process in processes]


def main() -> int:
    parser = Parser(
        description=__doc__.splitlines()[0], examples=["benchmarks/ceiling.py --rounds 8"], quiet=False
    )
    parser.add_argument("--policy", choices=NETWORKS, default="impala", help="(default: %(default)s)")
    parser.add_argument("--num-workers", type=positive, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=number, default=2.5, help="of each measurement (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--compute-on", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compute_on is not None:
        compute(arguments.policy, arguments.compute_on)
        return 0
    reason = unusable(arguments.policy, image_of(arguments.policy))
    if reason:
        raise InputError(f"the kernels cannot be used here: {reason}")
    if not arguments.seconds > 0:
        raise InputError(f"--seconds {arguments.seconds}: expected more than 0")
    placement = plan_placement(read_machine(), num_workers=arguments.num_workers, pinning="auto")
    cpus = [ANYWHERE if cpu is None else cpu for cpu in placement.worker_cpus]
    processes, rounds = [Process(arguments.policy, cpu) for cpu in cpus], []
    try:
        for _ in range(arguments.rounds):
            alone, together = measure(processes, arguments.seconds)
            ratio = sum(together) / statistics.mean(alone)
            rounds.append({"alone": alone, "together": together, "ratio": ratio})
            print(
                f"alone {statistics.mean(alone):.0f} samples/s, {len(cpus)} at once {sum(together):.0f}: "
                f"{ratio:.2f}x",
                flush=True,
            )
    finally:
        for process in processes:
            process.close()
    ratios = [row["ratio"] for row in rounds]
    print(
        f"{len(cpus)} processes that share nothing: {statistics.median(ratios):.2f}x one "
        f"({min(ratios):.2f}-{max(ratios):.2f})"
    )
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"policy": arguments.policy, "cpus": cpus, "rounds": rounds}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    run(main)
