#!/usr/bin/env python
"""Show which CPU each worker of a run would get on this machine, and why."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import Parser, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import Pinning, Placement, plan_placement
from parallel_ppo.machine.resources import GIB, Machine, format_cpu_list, parse_cpu_list, read_machine
from parallel_ppo.printable import count

EXAMPLES = ("tools/cpu_plan.py", "tools/cpu_plan.py --num-workers 4 --pinning 0,2")


def main() -> int:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    parser.add_argument(
        "--num-workers", type=positive, metavar="N", help="instead of the number the plan chooses"
    )
    parser.add_argument("--pinning", default="auto", help="auto (default), none, or CPUs like 0-3,8")
    flags = parser.parse_args()
    machine, pinning = read_machine(), flags.pinning
    try:
        wanted: Pinning = pinning if pinning in ("auto", "none") else parse_cpu_list(pinning)
        placement = plan_placement(machine, num_workers=flags.num_workers, pinning=wanted)
    except ValueError as error:
        raise InputError(
            f"--pinning {pinning}, --num-workers {flags.num_workers or 'auto'}: {error}"
        ) from None
    print(f"{machine.cpu_model}: {machine.summary()}")
    print(
        f"{machine.memory_bytes / GIB:.1f} GiB of memory available, "
        f"{machine.max_descriptors or 'unlimited'} file descriptors"
    )
    for line in (*plan_lines(machine, placement), *placement.reasons):
        print(line)
    return 0


def plan_lines(machine: Machine, placement: Placement) -> list[str]:
    """One for the workers on cores of one kind, so that 128 cores fit a screen."""
    cores = {core.cpu: core for core in machine.cores}
    groups: dict[str, list[int]] = defaultdict(list)
    for cpu in placement.worker_cpus:
        if cpu is None:
            return [
                f"{count(placement.num_workers, 'worker')} on CPUs {format_cpu_list(machine.cpus)}, not "
                "pinned"
            ]
        core = cores[cpu]
        kind = (
            "SMT siblings"
            if core.smt_thread
            else "physical cores"
            if core.is_performance
            else "efficiency cores"
        )
        groups[f"{kind} of NUMA node {core.numa_node}"].append(cpu)
    return [
        f"{count(len(cpus), 'worker')} on CPUs {format_cpu_list(cpus)}: {kind}"
        for kind, cpus in groups.items()
    ]


if __name__ == "__main__":
    run(main)
