"""Kills for lack of memory are counted by the kernel, in groups of both versions and on the host."""

from pathlib import Path

from parallel_ppo.machine.cgroup import oom_kills


def write(root: Path, tree: dict[str, str]) -> None:
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")


def test_version_2(tmp_path):
    write(tmp_path, {
        "proc/self/cgroup": "0::/job",
        "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "sys/fs/cgroup/job/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2",
    })  # fmt: skip
    assert oom_kills(tmp_path) == 2


def test_version_1_and_the_host(tmp_path):
    write(tmp_path, {
        "proc/self/cgroup": "4:memory:/job",
        "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5",
        "proc/vmstat": "nr_free_pages 1\noom_kill 6",
    })  # fmt: skip
    assert oom_kills(tmp_path) == 11


def test_where_nothing_is_told_nothing_is_counted(tmp_path):
    assert oom_kills(tmp_path) == 0
