"""Show where the workers of a run would go on this machine, or on one described in words; pin a process by hand.

examples:
  python tools/cpu_plan.py                                  the plan for this machine
  python tools/cpu_plan.py --num-workers 4 --pinning 0,2    with these settings
  python tools/cpu_plan.py --as "2x32 smt numa2"            two packages of 32 cores, 2 threads each, 2 NUMA nodes
  python tools/cpu_plan.py --as "4P+8E"                     a laptop with performance and efficiency cores
  python tools/cpu_plan.py --as "64 quota3"                 a container that may use 3 of 64 cores
  python tools/cpu_plan.py --pin 4711 --cores 0-7           confine a running process to these CPUs
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parallel_ppo.machine.placement import Pinning, Placement, pin_process, plan_placement
from parallel_ppo.machine.resources import (
    DESCRIPTION_HELP,
    GIB,
    Machine,
    describe,
    format_cpu_list,
    parse_cpu_list,
    read_machine,
)


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def main() -> int:
    arguments = parse_arguments()
    try:
        if arguments.pin is not None:
            pin_by_hand(arguments.pin, arguments.cores)
        else:
            show_plan(arguments)
    except (ValueError, OSError) as error:
        print(f"cpu_plan: error: {error}", file=sys.stderr)
        return 2
    return 0


def parse_arguments() -> argparse.Namespace:
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = OneLineParser(
        prog="cpu_plan",
        description=summary,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--as", dest="description", metavar="TEXT", help=f"a machine in words: {DESCRIPTION_HELP}"
    )
    parser.add_argument("--num-workers", type=int, metavar="N", help="instead of the number the plan chooses")
    parser.add_argument(
        "--pinning", default="auto", metavar="WHICH", help="auto (default), none, or CPUs like 0-3,8"
    )
    parser.add_argument(
        "--pin", type=int, metavar="PID", help="pin this process, all its threads, to --cores"
    )
    parser.add_argument("--cores", metavar="LIST", help="CPUs for --pin, like 0-7 or 0,2,4")
    arguments = parser.parse_args()
    if (arguments.pin is None) != (arguments.cores is None):
        parser.exit(
            2, "cpu_plan: error: --pin PID and --cores LIST go together, like --pin 4711 --cores 0-7\n"
        )
    return arguments


def pin_by_hand(pid: int, cores: str) -> None:
    if pid < 1:
        raise ValueError(f"{pid} is not a process id")
    cpus = parse_cpu_list(cores)
    last = (os.cpu_count() or 1) - 1
    if not cpus or max(cpus) > last:
        raise ValueError(f"--cores is {cores!r}, but the CPUs of this machine are 0-{last}")
    try:
        pin_process(pid, cpus)
    except PermissionError:
        raise ValueError(f"process {pid} belongs to another user: run this as that user or as root") from None
    except ProcessLookupError:
        raise ValueError(f"there is no process {pid}") from None
    print(f"process {pid} now runs on CPUs {format_cpu_list(os.sched_getaffinity(pid))}")


def show_plan(arguments: argparse.Namespace) -> None:
    machine = describe(arguments.description) if arguments.description is not None else read_machine()
    pinning: Pinning = arguments.pinning
    if arguments.pinning not in ("auto", "none"):
        pinning = parse_cpu_list(arguments.pinning)
    placement = plan_placement(machine, num_workers=arguments.num_workers, pinning=pinning)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a file or a pipe has no edge to wrap at
    console.print(f"[bold]{escape(machine.cpu_model)}[/bold]", soft_wrap=True)
    console.print(machine.summary(), soft_wrap=True)
    if arguments.description is None:
        console.print(resources(machine), soft_wrap=True)
    console.print(plan_table(machine, placement, box.ROUNDED if console.is_terminal else box.ASCII))
    for reason in placement.reasons:
        console.print(f"- {escape(reason)}", soft_wrap=True)


def resources(machine: Machine) -> str:
    def size(number: int | None, unit: int, name: str) -> str:
        return f"{number / unit:.4g} {name}" if number is not None else "unknown"

    locked = (
        size(machine.max_locked_bytes, 1 << 20, "MiB")
        if machine.max_locked_bytes is not None
        else "unlimited"
    )
    return (
        f"memory {size(machine.memory_bytes, GIB, 'GiB')} available of {size(machine.memory_limit_bytes, GIB, 'GiB')}, "
        f"/dev/shm {size(machine.shm_bytes, GIB, 'GiB')}, L2 {size(machine.l2_bytes, 1 << 20, 'MiB')}, "
        f"L3 {size(machine.l3_bytes, 1 << 20, 'MiB')}, lockable memory {locked}, "
        f"file descriptors {machine.max_descriptors or 'unlimited'}"
    )


def plan_table(machine: Machine, placement: Placement, border: box.Box) -> Table:
    """One row for each group of workers on cores of one kind, so that 128 cores fit a screen."""
    core_of = {core.cpu: core for core in machine.cores}
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for worker, cpu in enumerate(placement.worker_cpus):
        if cpu is None:
            groups["any", "any"].append(worker)
            continue
        core = core_of[cpu]
        kind = "SMT sibling" if core.smt_thread else "physical core"
        if machine.is_hybrid:
            kind = (
                "SMT sibling"
                if core.smt_thread
                else "performance core"
                if core.is_performance
                else "efficiency core"
            )
        groups[kind, str(core.numa_node)].append(worker)

    table = Table("process", "CPUs", "kind of core", "NUMA node", "threads each", box=border)
    for (kind, node), workers in groups.items():
        cpus = format_cpu_list(
            cpu for worker in workers if (cpu := placement.worker_cpus[worker]) is not None
        )
        name = f"worker {workers[0]}" if len(workers) == 1 else f"workers {format_cpu_list(workers)}"
        table.add_row(name, cpus or f"not pinned ({format_cpu_list(machine.cpus)})", kind, node, "1")
    nodes = sorted({core_of[cpu].numa_node for cpu in placement.coordinator_cpus})
    table.add_row(
        "coordinator",
        format_cpu_list(placement.coordinator_cpus),
        "beside the workers",
        format_cpu_list(nodes),
        "1",
    )
    return table


if __name__ == "__main__":
    sys.exit(main())
