"""Where the processes of a run go, and why; and the checks and calls that make it so.

Nothing here changes what is learned: any placement gives the same bits. Like `machine`, it imports neither
torch nor numpy, because thread variables only count before those are imported.
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
    worker_cpus: tuple[int | None, ...]
    """The CPU of each worker; None leaves the worker to the kernel's scheduler."""
    reasons: tuple[str, ...]
    """Plain sentences, for the log and `parallel-ppo doctor --plan`."""

    @property
    def num_workers(self) -> int:
        return len(self.worker_cpus)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def plan_placement(
    machine: Machine, *, num_workers: int | None, pinning: Pinning, max_useful: int | None = None
) -> Placement:
    """One single-threaded worker per physical core, as far as the cgroup's CPU time reaches.

    `num_workers` None chooses the number; `max_useful` bounds that choice by the work there is (the larger of
    slices and microbatches), but not a number that was asked for.
    """
    listed = None if isinstance(pinning, str) else _listed_cores(machine, pinning)
    if listed is None and pinning not in ("auto", "none"):
        raise ValueError(f"hardware.pinning is {pinning!r}: use auto, none or a list of CPUs like [0, 1]")
    cores = _preferred_order(machine) if listed is None else listed
    reasons: list[str] = []
    if num_workers is None:
        num_workers = _choose_num_workers(machine, cores, max_useful, reasons, is_listed=listed is not None)
    elif num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}: use 1 or more, or leave it out to have it chosen")
    else:
        reasons.append(f"num_workers {num_workers} was asked for.")

    free_because = None if listed is not None else _reason_not_to_pin(machine, num_workers, pinning == "none")
    if free_because is not None:
        return Placement((None,) * num_workers, (*reasons, free_because))
    placed = [cores[worker % len(cores)] for worker in range(num_workers)]
    reasons += _explain_pinning(machine, placed, is_listed=listed is not None)
    return Placement(tuple(core.cpu for core in placed), tuple(reasons))


def _preferred_order(machine: Machine) -> list[Core]:
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
        raise ValueError(
            f"hardware.pinning is an empty list: name at least one CPU ({allowed}), or use auto or none"
        )
    wrong = [cpu for cpu in pinning if type(cpu) is not int or cpu not in usable]
    if wrong:
        raise ValueError(
            f"hardware.pinning names CPU {', '.join(map(repr, wrong))}, but {allowed}: choose from these, "
            "or use auto"
        )
    repeated = [cpu for cpu, count in Counter(pinning).items() if count > 1]
    if repeated:
        raise ValueError(
            f"hardware.pinning names CPU {', '.join(map(str, repeated))} twice: name each once, "
            "further workers start again at the head of the list"
        )
    return [usable[cpu] for cpu in pinning]


def _choose_num_workers(
    machine: Machine, cores: list[Core], max_useful: int | None, reasons: list[str], *, is_listed: bool
) -> int:
    """The tightest of three bounds; only that one is given as the reason."""
    if is_listed:
        bounds = [(len(cores), "one for each CPU of hardware.pinning")]
    else:
        bounds = [(machine.num_physical_cores, "one for each physical core this process may use")]
    if machine.cpu_quota is not None:
        why = (
            f"the cgroup grants {machine.cpu_quota:g} cores of CPU time, and more would be paused every time"
        )
        bounds.append((max(1, int(machine.cpu_quota)), why))
    if max_useful is not None:
        bounds.append((max(1, max_useful), "the run has no work for more at a time"))
    number, why = min(bounds, key=lambda bound: bound[0])
    reasons.append(f"{count(number, 'worker')}: {why}.")
    if not is_listed and number == machine.num_physical_cores < len(machine.cores):
        # Convolutions keep a core's vector units busy from one thread; a second only halves its caches.
        reasons.append(
            "SMT siblings stay free: two workers on one core share its vector units and caches. "
            "Ask for more workers to use them."
        )
    return number


def _reason_not_to_pin(machine: Machine, num_workers: int, is_off: bool) -> str | None:
    if is_off:
        return "Nothing is pinned: hardware.pinning is none."
    quota, num_cpus = machine.cpu_quota, len(machine.cores)
    if quota is not None and quota < machine.num_physical_cores:
        # Every container of the host would choose the same first CPUs.
        return (
            f"Nothing is pinned: with CPU time for {quota:g} of {machine.num_physical_cores} physical cores, "
            "the other cores belong to neighbours, and only the kernel sees which are idle."
        )
    if num_workers > num_cpus and num_workers % num_cpus:
        # 3 equal workers on 2 CPUs, measured: 0.47 s a round pinned, 0.36 s when the kernel shares the CPUs
        # out.
        return (
            f"Nothing is pinned: {num_workers} workers do not divide evenly over {num_cpus} CPUs, "
            "and the kernel shares them out better than a fixed CPU each."
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
        reasons.append(
            "Cores stay free; a second run would choose the same CPUs as this one, so give each run its own "
            "hardware.pinning list (or none)."
        )
    return reasons


def set_thread_variables() -> None:
    """One thread for OpenMP, MKL and the other maths libraries; call before importing torch or numpy.

    OpenMP's own binding is switched off: with OMP_PROC_BIND=true, as some clusters set it, `import torch`
    alone confines the whole process to its first CPU.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1") | {"OMP_PROC_BIND": "false"})


def keep_freed_memory() -> None:
    """Lets the C library reuse what torch frees: from the system, every microbatch's pages would be zeroed anew."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            library.mallopt(parameter, 1 << 30)


def memory_need_error(
    need_bytes: int, machine: Machine, remedy: str = "fewer environments, steps or workers"
) -> str | None:
    """One line for the user when the run will not fit, else None."""
    if machine.memory_limit_bytes == 0 or need_bytes <= machine.memory_bytes:  # 0: the host does not tell
        return None
    return (
        f"this run needs {_bytes(need_bytes)} of memory but {_bytes(machine.memory_bytes)} are available "
        f"(limit {_bytes(machine.memory_limit_bytes)}): use {remedy}, or free memory"
    )


def descriptor_need_error(num_needed: int, machine: Machine) -> str | None:
    """One line for the user when the run would run out of file descriptors, else None."""
    if machine.max_descriptors is None or num_needed <= machine.max_descriptors:
        return None
    return (
        f"this run needs {num_needed} file descriptors but the limit is {machine.max_descriptors}: "
        f"run `ulimit -n {num_needed}` first, or use fewer workers"
    )


def address_space_error(more_bytes: int) -> str | None:
    """One line for the user when this process may not map that much more (`ulimit -v`), else None."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit == resource.RLIM_INFINITY or mapped + more_bytes <= limit:
        return None
    return (
        f"this run needs {_bytes(mapped + more_bytes)} of address space but the limit is {_bytes(limit)}: "
        f"run `ulimit -v {(mapped + more_bytes) // 1024 + 1}` first, or `ulimit -v unlimited`"
    )


def _bytes(number: int) -> str:
    return f"{number:,} bytes ({number / GIB:.2f} GiB)"
