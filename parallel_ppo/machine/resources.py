"""The resources that this process may use: cores, CPU time, memory, descriptors.

Reads procfs, sysfs and cgroupfs below a `root`, so that tests can use recordings of other machines. Imports neither
torch nor NumPy, because it runs before them (see `placement.set_thread_variables`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from parallel_ppo.machine import cgroup
from parallel_ppo.machine.cgroup import read_number, read_text
from parallel_ppo.printable import count

GIB = 1 << 30
# Relative to the strongest core: equal cores differ by a few percent, kinds of cores by 25% or more.
EFFICIENCY_BELOW = 0.8
MAX_CPU = 1 << 16


@dataclass(frozen=True)
class Core:
    """One usable logical CPU."""

    cpu: int  # the kernel's number, as for `taskset`
    core_id: int  # the physical core in its package; SMT siblings share it
    package: int
    numa_node: int
    is_performance: bool  # False for the efficiency cores of a hybrid machine
    smt_thread: int  # 0 for the first usable hardware thread of a physical core, 1 for its sibling


@dataclass(frozen=True)
class Machine:
    cores: tuple[Core, ...]  # usable by affinity and cpuset, by number
    num_online: int  # logical CPUs of the host that are on
    cpu_quota: float | None  # CPU time of the cgroup in cores; None without a limit
    cpu_model: str
    memory_bytes: int  # free memory: of the host or below the cgroup limit, the smaller
    memory_limit_bytes: int  # physical memory or the cgroup limit, the smaller
    max_descriptors: int | None  # soft RLIMIT_NOFILE; None without a limit

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(core.cpu for core in self.cores)

    @property
    def num_physical_cores(self) -> int:
        return sum(core.smt_thread == 0 for core in self.cores)

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({core.numa_node for core in self.cores}))

    @property
    def is_hybrid(self) -> bool:
        return len({core.is_performance for core in self.cores}) == 2

    def summary(self) -> str:
        """For example `16 physical cores, 32 usable CPUs of 32, 2 NUMA nodes, cgroup quota 3 cores`."""
        physical = [core for core in self.cores if core.smt_thread == 0]
        if self.is_hybrid:
            num_performance = sum(core.is_performance for core in physical)
            parts = [f"{num_performance} performance + {len(physical) - num_performance} efficiency cores"]
        else:
            parts = [count(len(physical), "physical core")]
        parts.append(f"{count(len(self.cores), 'usable CPU')} of {self.num_online}")
        parts.append(count(len(self.numa_nodes), "NUMA node"))
        if self.cpu_quota is not None:
            parts.append(f"cgroup quota {self.cpu_quota:g} cores")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def read_machine(root: Path = Path("/")) -> Machine:
    cpus = _usable_cpus(root)
    total, available = _memory(root)
    limit, left = cgroup.memory_limit(root), cgroup.memory_left(root)
    return Machine(
        cores=_read_cores(root, cpus),
        num_online=len(_online_cpus(root)) or len(cpus),
        cpu_quota=cgroup.cpu_quota(root),
        cpu_model=_cpu_model(root),
        memory_bytes=available if left is None else min(available, left),
        memory_limit_bytes=total if limit is None else min(total, limit),
        max_descriptors=_descriptor_limit(root),
    )


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`"0-3,8"` -> (0, 1, 2, 3, 8), in the notation of the kernel and taskset."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last >= MAX_CPU:
            raise ValueError(f"{part.strip()!r} is not a CPU or a range of CPUs; expected a list like 0-3,8")
        cpus.extend(range(first, last + 1))
    return tuple(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """(0, 1, 2, 3, 8) -> `"0-3,8"`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def _online_cpus(root: Path) -> tuple[int, ...]:
    return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online") or "")


def _usable_cpus(root: Path) -> tuple[int, ...]:
    """The affinity, which includes taskset and cpusets, without CPUs that are off."""
    match = re.search(
        r"^Cpus_allowed_list:\s*(\S+)", read_text(root / "proc/self/status") or "", re.MULTILINE
    )
    allowed = parse_cpu_list(match[1]) if match else tuple(sorted(os.sched_getaffinity(0)))
    online = set(_online_cpus(root))
    return tuple(cpu for cpu in allowed if cpu in online) or allowed


def _read_cores(root: Path, cpus: tuple[int, ...]) -> tuple[Core, ...]:
    node_of = {cpu: node for node, node_cpus in _nodes(root) for cpu in node_cpus}
    performance = _performance_cpus(root, cpus)
    cores = []
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = parse_cpu_list(read_text(topology / "thread_siblings_list") or str(cpu))
        # The kernel's core_id repeats across dies of some machines; the lowest sibling is unique.
        core_id, package = min(siblings), max(0, read_number(topology / "physical_package_id") or 0)
        cores.append(Core(cpu, core_id, package, node_of.get(cpu, 0), cpu in performance, 0))
    return _number_threads(cores)


def _number_threads(cores: Iterable[Core]) -> tuple[Core, ...]:
    """Numbers the usable threads of each physical core; a single usable sibling counts as a core."""
    seen: dict[tuple[int, int], int] = {}
    numbered = []
    for core in sorted(cores, key=lambda core: core.cpu):
        key = (core.package, core.core_id)
        numbered.append(replace(core, smt_thread=seen.get(key, 0)))
        seen[key] = seen.get(key, 0) + 1
    return tuple(numbered)


def _nodes(root: Path) -> Iterator[tuple[int, tuple[int, ...]]]:
    for path in (root / "sys/devices/system/node").glob("node[0-9]*"):
        yield int(path.name[4:]), parse_cpu_list(read_text(path / "cpulist") or "")


def _performance_cpus(root: Path, cpus: tuple[int, ...]) -> set[int]:
    """All CPUs, unless Intel's device lists, capacities or top frequencies show two kinds."""
    efficiency = set(parse_cpu_list(read_text(root / "sys/devices/cpu_atom/cpus") or ""))
    if efficiency:
        return set(cpus) - efficiency or set(cpus)
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        strength = {cpu: read_number(root / f"sys/devices/system/cpu/cpu{cpu}/{name}") or 0 for cpu in cpus}
        strongest = max(strength.values())
        strong = {cpu for cpu in cpus if strength[cpu] >= EFFICIENCY_BELOW * strongest}
        if min(strength.values()) > 0 and len(strong) < len(cpus):
            return strong
    return set(cpus)


def _cpu_model(root: Path) -> str:
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    match = re.search(r"^(?:model name|Model|cpu model|Processor)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else f"unknown {os.uname().machine} CPU"


def _memory(root: Path) -> tuple[int, int]:
    """Total and available bytes of the host."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    fields = {name: int(kilobytes) << 10 for name, kilobytes in found}
    return fields.get("MemTotal", 0), fields.get("MemAvailable", fields.get("MemFree", 0))


def _descriptor_limit(root: Path) -> int | None:
    match = re.search(r"^Max open files\s+(\d+)", read_text(root / "proc/self/limits") or "", re.MULTILINE)
    return int(match[1]) if match else None
