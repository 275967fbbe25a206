"""Reading a machine and planning for it, on this machine and on trees of others.

A tree is a dictionary from paths to contents. `THIS_CLASS` is a recording. The others imitate the files of Linux on
the machines that they are named after, with their numbering of siblings and nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parallel_ppo.commands import doctor
from parallel_ppo.machine.placement import (
    THREAD_VARIABLES,
    Placement,
    descriptor_need_error,
    memory_need_error,
    plan_placement,
    set_thread_variables,
)
from parallel_ppo.machine.resources import Machine, format_cpu_list, parse_cpu_list, read_machine
from tests.conftest import ROOT
from tests.machine.machines import machine as made_up

Tree = dict[str, str]
Read = Callable[[Tree], Machine]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(tree: Tree) -> Machine:
        for name, content in tree.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
        return read_machine(tmp_path)

    return write_and_read


def plan(machine: Machine, **settings: object) -> Placement:
    return plan_placement(machine, **{"num_workers": None, "pinning": "auto", **settings})


# ---------------------------------------------------------------- trees

MOUNTS_V1 = """32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"""

MOUNTS_V2 = """29 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate"""

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            20000                20000                files
Max file locks            unlimited            unlimited            locks"""


def topology(
    siblings: list[str],
    *,
    packages: list[str] | None = None,
    nodes: list[str] | None = None,
    allowed: str = "",
) -> Tree:
    """`siblings`, `packages` and `nodes` hold one CPU list per physical core, package and node."""
    tree = {}
    package_of = {cpu: index for index, cpus in enumerate(packages or []) for cpu in parse_cpu_list(cpus)}
    everyone = [cpu for cpus in siblings for cpu in parse_cpu_list(cpus)]
    for cpus in siblings:
        for cpu in parse_cpu_list(cpus):
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            tree[f"{folder}/thread_siblings_list"] = cpus
            tree[f"{folder}/physical_package_id"] = str(package_of.get(cpu, 0))
    for node, cpus in enumerate(nodes or [format_cpu_list(everyone)]):
        tree[f"sys/devices/system/node/node{node}/cpulist"] = cpus
    tree["sys/devices/system/cpu/online"] = format_cpu_list(everyone)
    tree["proc/self/status"] = f"Name:\tpython\nCpus_allowed_list:\t{allowed or format_cpu_list(everyone)}"
    tree["proc/meminfo"] = (
        "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB"
    )
    tree["proc/self/limits"] = LIMITS
    return tree


def singles(number: int, **settings: object) -> Tree:
    return topology([str(cpu) for cpu in range(number)], **settings)  # type: ignore[arg-type]


def version_2(group: str, files: dict[str, str]) -> Tree:
    tree = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    return {"proc/self/cgroup": f"0::{group}", "proc/self/mountinfo": MOUNTS_V2, **tree}


THIS_CLASS: Tree = {
    **singles(2),
    "proc/self/cgroup": "4:memory:/jobs/job1\n3:cpuset:/\n2:cpuacct:/\n1:cpu:/\n0::/",
    "proc/self/mountinfo": MOUNTS_V1,
    "proc/cpuinfo": "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2",
    "proc/meminfo": "MemTotal:       24682416 kB\nMemFree:        23189436 kB\nMemAvailable:   24062020 kB",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/jobs/job1/memory.limit_in_bytes": "9223372036854771712",
    "sys/devices/system/cpu/cpu0/cpu_capacity": "1024",
    "sys/devices/system/cpu/cpu1/cpu_capacity": "1024",
}

LAPTOP = topology([f"{cpu}-{cpu + 1}" for cpu in range(0, 8, 2)] + [str(cpu) for cpu in range(8, 16)])
LAPTOP_BY_LISTS = {**LAPTOP, "sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-15"}
LAPTOP_BY_CAPACITY = LAPTOP | {
    f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": "1024" if cpu < 8 else "623" for cpu in range(16)
}
LAPTOP_BY_FREQUENCY = LAPTOP | {
    f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "4700000" if cpu < 8 else "3400000"
    for cpu in range(16)
}
DESKTOP_16_SMT = topology([f"{cpu},{cpu + 16}" for cpu in range(16)])
# Two packages whose CPUs alternate, as the firmware of many servers numbers them: node 0 has the even ones.
EVEN, ODD = (",".join(map(str, range(first, 128, 2))) for first in (0, 1))
SERVER_2X32 = topology([f"{cpu},{cpu + 64}" for cpu in range(64)], packages=[EVEN, ODD], nodes=[EVEN, ODD])


# ---------------------------------------------------------------- machines


def test_this_machine() -> None:
    machine = read_machine()
    allowed = os.sched_getaffinity(0)
    assert set(machine.cpus) == allowed
    assert 1 <= machine.num_physical_cores <= len(allowed) <= machine.num_online
    assert 0 < machine.memory_bytes <= machine.memory_limit_bytes
    placement = plan(machine)
    assert 1 <= placement.num_workers <= machine.num_physical_cores
    assert {cpu for cpu in placement.worker_cpus if cpu is not None} <= allowed


def test_recording_of_two_cores(read: Read) -> None:
    machine = read(THIS_CLASS)
    assert machine.cpu_model == "Intel(R) Xeon(R) Processor"
    assert machine.cpu_quota is None
    assert machine.memory_bytes == 24062020 << 10
    assert machine.memory_limit_bytes == 24682416 << 10
    assert machine.max_descriptors == 20000
    assert not machine.is_hybrid
    placement = plan(machine)
    assert placement.worker_cpus == (0, 1)


@pytest.mark.parametrize(
    "limits",
    [
        {"proc/self/cgroup": "1:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000"},
        version_2("/job", {"job/cpu.max": "150000 100000"}),
        version_2("/job/child", {"job/cpu.max": "75000 50000", "job/child/cpu.max": "max 100000"}),
        version_2("/job/child", {"job/cpu.max": "200000 100000", "job/child/cpu.max": "150000 100000"}),
        version_2("/", {"cpu.max": "150000 100000"}),
        version_2("/../outside", {"cpu.max": "150000 100000"}),
        # Version 1 in a container without a namespace of its own: the path exists on the host only.
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/0a1b",
            "proc/self/mountinfo": (
                "9 8 0:7 /docker/0a1b /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct"
            ),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
        },
    ],
    ids=["v1", "v2", "v2-parent", "v2-child", "v2-namespace", "v2-outside", "v1-container"],
)
def test_quota_of_one_and_a_half_cores(read: Read, limits: Tree) -> None:
    machine = read(THIS_CLASS | limits)
    assert machine.cpu_quota == 1.5
    placement = plan(machine)
    assert placement.worker_cpus == (None,)
    assert "1.5 cores" in placement.reasons[0]


def test_quota_below_one_core_still_has_a_worker(read: Read) -> None:
    assert plan(read(THIS_CLASS | version_2("/", {"cpu.max": "50000 100000"}))).num_workers == 1


def test_quota_of_all_cores_does_not_prevent_pinning(read: Read) -> None:
    assert plan(read(THIS_CLASS | version_2("/", {"cpu.max": "200000 100000"}))).worker_cpus == (0, 1)


def test_taskset_recorded(read: Read) -> None:
    machine = read(THIS_CLASS | {"proc/self/status": "Cpus_allowed:\t2\nCpus_allowed_list:\t1"})
    assert (machine.cpus, machine.num_online) == ((1,), 2)
    placement = plan(machine)
    assert placement.worker_cpus == (1,)
    assert plan(machine, num_workers=3).worker_cpus == (1, 1, 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_taskset_for_real() -> None:
    last = max(os.sched_getaffinity(0))
    code = "from parallel_ppo.machine.resources import *; print(read_machine().cpus)"
    assert run(["taskset", "-c", str(last), sys.executable, "-c", code]).stdout == f"({last},)\n"


@pytest.mark.parametrize(
    "tree", [LAPTOP_BY_LISTS, LAPTOP_BY_CAPACITY, LAPTOP_BY_FREQUENCY], ids=["list", "cap", "MHz"]
)
def test_laptop_with_performance_and_efficiency_cores(read: Read, tree: Tree) -> None:
    machine = read(tree)
    assert machine.is_hybrid
    placement = plan(machine)
    assert placement.worker_cpus == (0, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15)
    assert plan(machine, num_workers=14).worker_cpus == (0, 2, 4, 6, *range(8, 16), 1, 3)


def test_efficiency_cores_that_are_numbered_first(read: Read) -> None:
    capacities = {
        f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": "446" if cpu < 4 else "1024" for cpu in range(8)
    }
    placement = plan(read(singles(8) | capacities))
    assert placement.worker_cpus == (4, 5, 6, 7, 0, 1, 2, 3)


def test_turbo_bins_are_not_two_kinds_of_cores(read: Read) -> None:
    frequencies = {
        f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "5700000" if cpu < 2 else "5300000"
        for cpu in range(4)
    }
    assert not read(singles(4) | frequencies).is_hybrid


def test_16_cores_with_smt(read: Read) -> None:
    machine = read(DESKTOP_16_SMT)
    assert (machine.num_physical_cores, len(machine.cores)) == (16, 32)
    assert plan(machine).worker_cpus == tuple(range(16))
    assert plan(machine, num_workers=20).worker_cpus == tuple(range(20))
    assert plan(machine, num_workers=64).worker_cpus == (*range(32), *range(32))


def test_lone_sibling_counts_as_a_core(read: Read) -> None:
    machine = read(topology(["0,4", "1,5", "2,6", "3,7"], allowed="3-5,7"))
    assert machine.num_physical_cores == 3
    assert plan(machine).worker_cpus == (3, 4, 5)


def test_two_packages_of_32_cores(read: Read) -> None:
    machine = read(SERVER_2X32)
    assert (machine.num_physical_cores, machine.numa_nodes) == (64, (0, 1))
    placement = plan(machine)
    assert placement.worker_cpus == (*range(0, 64, 2), *range(1, 64, 2))
    few = plan(machine, num_workers=8)
    assert few.worker_cpus == tuple(range(0, 16, 2))
    assert any("another run" in reason for reason in few.reasons)


def test_the_larger_share_of_a_node_comes_first(read: Read) -> None:
    placement = plan(read(singles(8, nodes=["0-3", "4-7"], allowed="3-6")))
    assert placement.worker_cpus == (4, 5, 6, 3)


def test_128_cores(read: Read) -> None:
    machine = read(singles(128))
    assert plan(machine).worker_cpus == tuple(range(128))
    useful = plan(machine, max_useful=16)
    assert useful.worker_cpus == tuple(range(16))
    assert "no work for more" in useful.reasons[0]
    assert plan(machine, num_workers=20, max_useful=16).num_workers == 20


def test_container_with_3_of_64_cores_by_quota(read: Read) -> None:
    limits = version_2(
        "/", {"cpu.max": "300000 100000", "memory.max": "8589934592", "memory.current": "1073741824"}
    )
    machine = read(singles(64, nodes=["0-31", "32-63"]) | limits)
    placement = plan(machine)
    assert placement.worker_cpus == (None, None, None)
    assert plan(machine, pinning=[7, 8]).worker_cpus == (7, 8)
    assert plan(machine, pinning=[7, 8, 9, 10]).worker_cpus == (7, 8, 9)


def test_container_with_3_of_64_cores_by_cpuset(read: Read) -> None:
    placement = plan(read(singles(64, allowed="5-7")))
    assert placement.worker_cpus == (5, 6, 7)


def test_cpus_that_are_off_are_not_used(read: Read) -> None:
    assert plan(read(singles(4, allowed="0-7"))).worker_cpus == (0, 1, 2, 3)


def test_a_host_that_hides_everything_still_gets_a_plan(read: Read) -> None:
    machine = read({"proc/self/status": "Cpus_allowed_list:\t0-2"})
    assert plan(machine).worker_cpus == (0, 1, 2)
    assert memory_need_error(1 << 40, machine) is None


# ---------------------------------------------------------------- memory and descriptors


@pytest.mark.parametrize(
    "limits",
    [
        version_2(
            "/a/b",
            {
                "a/memory.max": "4000000000",
                "a/memory.current": "3000000000",
                "a/memory.stat": "anon 1000\nactive_file 500000000\ninactive_file 500000000",
                "a/b/memory.max": "max",
            },
        ),
        version_2(
            "/a", {"a/memory.max": "max", "a/memory.high": "4000000000", "a/memory.current": "2000000000"}
        ),
        {
            "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": "4000000000",
            "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes": "2500000000",
            "sys/fs/cgroup/memory/jobs/memory.stat": "cache 7\ntotal_inactive_file 500000000",
        },
    ],
    ids=["v2", "v2-high", "v1"],
)
def test_memory_left_under_a_cgroup(read: Read, limits: Tree) -> None:
    machine = read(THIS_CLASS | limits)
    assert (machine.memory_bytes, machine.memory_limit_bytes) == (2_000_000_000, 4_000_000_000)
    assert memory_need_error(2_000_000_000, machine) is None
    error = memory_need_error(2_000_000_001, machine)
    assert error is not None
    assert "\n" not in error
    assert "2,000,000,001 bytes" in error
    assert "2,000,000,000 bytes" in error


def test_descriptors(read: Read) -> None:
    machine = read(THIS_CLASS)
    assert descriptor_need_error(20_000, machine) is None
    assert "ulimit -n 20001" in (descriptor_need_error(20_001, machine) or "")


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("pinning", [[], [0, 9], [-1], [1, 1]])
def test_wrong_pinning_is_one_line_that_names_the_key(pinning: object) -> None:
    with pytest.raises(ValueError, match=r"^hardware\.pinning [^\n]*$"):
        plan(made_up(4), pinning=pinning)


def test_pinning_by_list_and_none() -> None:
    listed = plan(made_up(8), pinning=[5, 2], num_workers=3)
    assert listed.worker_cpus == (5, 2, 5)
    assert plan(made_up(8), pinning=[5, 2]).num_workers == 2
    free = plan(made_up(8), pinning="none")
    assert free.worker_cpus == (None,) * 8
    assert "hardware.pinning is none" in free.reasons[-1]


def test_more_workers_than_cpus() -> None:
    assert plan(made_up(2), num_workers=4).worker_cpus == (0, 1, 0, 1)
    assert plan(made_up(2), num_workers=3).worker_cpus == (None, None, None)


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,8\n") == (0, 1, 2, 8)
    assert parse_cpu_list("") == ()
    assert format_cpu_list((8, 0, 1, 2)) == "0-2,8"
    for wrong in ("x", "3-1", "-1", "0-99999999999"):
        with pytest.raises(ValueError, match="0-3,8"):
            parse_cpu_list(wrong)


# ---------------------------------------------------------------- processes


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, env=environment)


def test_thread_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*THREAD_VARIABLES, "OMP_PROC_BIND"):
        monkeypatch.setenv(name, "true")
    set_thread_variables()
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}
    assert os.environ["OMP_PROC_BIND"] == "false"


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, parallel_ppo.machine.placement; print({'torch', 'numpy', 'pydantic', 'rich'} &"
        " set(sys.modules))"
    )
    assert run([sys.executable, "-c", code]).stdout == "set()\n"


def test_doctor_shows_a_plan(read: Read) -> None:
    machine = read(SERVER_2X32)
    assert doctor.plan_lines(machine, plan(machine)) == [
        f"32 workers on CPUs {','.join(map(str, range(0, 64, 2)))}: physical cores of NUMA node 0",
        f"32 workers on CPUs {','.join(map(str, range(1, 64, 2)))}: physical cores of NUMA node 1",
    ]
    assert doctor.plan_lines(machine, plan(machine, pinning="none")) == [
        "64 workers on CPUs 0-127, not pinned"
    ]


def test_doctor_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--plan", "--num-workers", "1"]) == 0
    shown = capsys.readouterr()
    assert "1 worker on CPUs" in shown.out and shown.err == ""
