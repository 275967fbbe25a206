"""The number of workers, their CPUs with reasons, and checks of the machine's limits.

Every placement gives the same bits. Imports neither torch nor NumPy, because thread variables must be set first.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from parallel_ppo.machine.resources import GIB, Core, Machine, format_cpu_list
from parallel_ppo.printable import count

Pinning = Literal["auto", "none"] | Sequence[int]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)


@dataclass(frozen=True)
class Placement:
    worker_cpus: tuple[int | None, ...]  # of each worker; None: the kernel's scheduler chooses
    reasons: tuple[str, ...]  # sentences for the log and `parallel-ppo doctor --plan`

    @property
    def num_workers(self) -> int:
        return len(self.worker_cpus)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def plan_placement(
    machine: Machine, *, num_workers: int | None, pinning: Pinning, max_useful: int | None = None
) -> Placement:
    """One single-threaded worker per physical core, within the CPU time of the cgroup.

    `num_workers` None chooses the number, at most `max_useful`: the larger of slices and microbatches.
    """
    listed = None if isinstance(pinning, str) else _listed_cores(machine, pinning)
    cores = preferred_order(machine) if listed is None else listed
    reasons: list[str] = []
    if num_workers is None:
        num_workers = _choose_num_workers(machine, cores, max_useful, reasons, is_listed=listed is not None)
    else:
        reasons.append(f"num_workers {num_workers} was given.")

    free_because = None if listed is not None else _reason_not_to_pin(machine, num_workers, pinning == "none")
    if free_because is not None:
        return Placement((None,) * num_workers, (*reasons, free_because))
    placed = [cores[worker % len(cores)] for worker in range(num_workers)]
    reasons += _explain_pinning(machine, placed, is_listed=listed is not None)
    return Placement(tuple(core.cpu for core in placed), tuple(reasons))


def preferred_order(machine: Machine) -> list[Core]:
    """Physical cores before siblings, performance before efficiency, the largest NUMA node first."""
    size = Counter(core.numa_node for core in machine.cores if core.smt_thread == 0)
    return sorted(
        machine.cores,
        key=lambda core: (
            core.smt_thread,
            not core.is_performance,
            -size[core.numa_node],
            core.numa_node,
            core.package,
            core.cpu,
        ),
    )


def _listed_cores(machine: Machine, pinning: Sequence[int]) -> list[Core]:
    usable = {core.cpu: core for core in machine.cores}
    allowed = f"this process may use {format_cpu_list(usable)}"
    if not pinning:
        raise ValueError(f"hardware.pinning is an empty list; add a CPU ({allowed}), or use auto or none")
    wrong = [cpu for cpu in pinning if cpu not in usable]
    if wrong:
        raise ValueError(
            f"hardware.pinning has CPU {format_cpu_list(wrong)}, but {allowed}; choose from these, or use"
            " auto"
        )
    repeated = [cpu for cpu, count in Counter(pinning).items() if count > 1]
    if repeated:
        raise ValueError(
            f"hardware.pinning has CPU {format_cpu_list(repeated)} twice; list each once, further workers"
            " start again at the first"
        )
    return [usable[cpu] for cpu in pinning]


def _choose_num_workers(
    machine: Machine, cores: list[Core], max_useful: int | None, reasons: list[str], *, is_listed: bool
) -> int:
    """The lowest of three bounds; the reason names only that one."""
    if is_listed:
        bounds = [(len(cores), "one for each CPU of hardware.pinning")]
    else:
        bounds = [(machine.num_physical_cores, "one for each physical core this process may use")]
    if machine.cpu_quota is not None:
        why = f"the cgroup allows {machine.cpu_quota:g} cores of CPU time, and more workers would be paused"
        bounds.append((max(1, int(machine.cpu_quota)), why))
    if max_useful is not None:
        bounds.append((max(1, max_useful), "the run has no work for more at once"))
    number, why = min(bounds, key=lambda bound: bound[0])
    reasons.append(f"{count(number, 'worker')}: {why}.")
    if not is_listed and number == machine.num_physical_cores < len(machine.cores):
        # One thread of convolutions keeps a core's vector units busy; a second one only halves the caches.
        reasons.append(
            "SMT siblings stay free: two workers on one core share its vector units and caches. "
            "Set num_workers to use them."
        )
    return number


def _reason_not_to_pin(machine: Machine, num_workers: int, is_off: bool) -> str | None:
    if is_off:
        return "Nothing is pinned: hardware.pinning is none."
    quota, num_cpus = machine.cpu_quota, len(machine.cores)
    if quota is not None and quota < machine.num_physical_cores:
        # All containers of the host would choose the same first CPUs.
        return (
            f"Nothing is pinned: with CPU time for {quota:g} of {machine.num_physical_cores} physical cores, "
            "other containers use the rest, and only the kernel knows which are idle."
        )
    if num_workers > num_cpus and num_workers % num_cpus:
        # Measured with 3 workers on 2 CPUs: 0.47 s per round pinned, 0.36 s with the kernel's scheduler.
        return (
            f"Nothing is pinned: {num_workers} workers do not divide evenly over {num_cpus} CPUs, "
            "and the kernel shares them better than fixed CPUs."
        )
    return None


def _explain_pinning(machine: Machine, placed: list[Core], *, is_listed: bool) -> list[str]:
    num_used = len({core.cpu for core in placed})
    reasons = []
    if is_listed:
        reasons.append(f"CPUs {format_cpu_list(core.cpu for core in placed)} were given by hardware.pinning.")
    if len(placed) > num_used:
        reasons.append(f"{count(len(placed), 'worker')} share {count(num_used, 'CPU')}.")
    if not is_listed and num_used < machine.num_physical_cores:
        reasons.append("Cores stay free; another run that starts now takes these.")
    return reasons


def set_thread_variables() -> None:
    """One thread for OpenMP, MKL and similar libraries; must be called before torch or NumPy is imported.

    Turns OpenMP's binding off: with OMP_PROC_BIND=true, as on some clusters, `import torch` binds the whole process
    to its first CPU.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1") | {"OMP_PROC_BIND": "false"})


def keep_freed_memory() -> None:
    """The C library keeps memory that torch frees; the system would zero its pages for every microbatch."""
    library = ctypes.CDLL(None)
    for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        library.mallopt(parameter, 1 << 30)


def memory_need_error(
    need_bytes: int, machine: Machine, remedy: str = "fewer environments, steps or workers"
) -> str | None:
    """An error if the run does not fit, else None."""
    if machine.memory_limit_bytes == 0 or need_bytes <= machine.memory_bytes:  # 0: unknown
        return None
    return (
        f"this run needs {_bytes(need_bytes)} of memory but {_bytes(machine.memory_bytes)} are available "
        f"(limit {_bytes(machine.memory_limit_bytes)}): use {remedy}, or free memory"
    )


def descriptor_need_error(num_needed: int, machine: Machine) -> str | None:
    if machine.max_descriptors is None or num_needed <= machine.max_descriptors:
        return None
    return (
        f"this run needs {num_needed} file descriptors but the limit is {machine.max_descriptors}; run"
        f" `ulimit -n {num_needed}` first, or use fewer workers"
    )


def address_space_error(more_bytes: int) -> str | None:
    """An error if `ulimit -v` does not allow this process to map that much more, else None."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit == resource.RLIM_INFINITY or mapped + more_bytes <= limit:
        return None
    return (
        f"this run needs {_bytes(mapped + more_bytes)} of address space but the limit is {_bytes(limit)}; run"
        f" `ulimit -v {(mapped + more_bytes) // 1024 + 1}` first, or `ulimit -v unlimited`"
    )


def _bytes(number: int) -> str:
    return f"{number:,} bytes ({number / GIB:.2f} GiB)"
