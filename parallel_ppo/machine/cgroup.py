"""CPU and memory limits of control groups, versions 1 and 2.

All levels from the process's group up to the mount count, because a parent may allow less than its child.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_text(path: Path) -> str | None:
    """The stripped content, or None if the file is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def cpu_quota(root: Path) -> float | None:
    """CPU time in cores; None without a limit."""
    quotas = [_quota_v2(group) for group in _groups(root, None)]
    quotas += [_quota_v1(group) for group in _groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path) -> int | None:
    """The lowest limit in bytes; None without a limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path) -> int | None:
    """Bytes that can still be allocated; page cache counts as free. None without a limit."""
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def oom_kills(root: Path) -> int:
    """Number of out-of-memory kills, in this process's groups and on the host."""
    total = _counter(root / "proc/vmstat", "oom_kill")
    for controller, name in ((None, "memory.events"), ("memory", "memory.oom_control")):
        total += sum(_counter(group / name, "oom_kill") for group in _groups(root, controller))
    return total


def _counter(path: Path, name: str) -> int:
    for line in (read_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _quota_v2(group: Path) -> float | None:
    quota, _, period = (read_text(group / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def _quota_v1(group: Path) -> float | None:
    quota = read_number(group / "cpu.cfs_quota_us")
    period = read_number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, memory in use without page cache) of every limited group."""
    for group in _groups(root, None):
        # Above memory.high the kernel slows the process to a crawl, so it is a limit too.
        for name in ("memory.max", "memory.high"):
            limit = read_number(group / name)
            if limit is not None:
                yield limit, _memory_in_use(group, "memory.current", "")
    for group in _groups(root, "memory"):
        limit = read_number(group / "memory.limit_in_bytes")
        if limit is not None and limit < 1 << 60:  # version 1 writes "no limit" as almost 2^63
            yield limit, _memory_in_use(group, "memory.usage_in_bytes", "total_")


def _memory_in_use(group: Path, usage_file: str, prefix: str) -> int:
    lines = (line.split() for line in (read_text(group / "memory.stat") or "").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    cache = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return max(0, (read_number(group / usage_file) or 0) - cache)


def _groups(root: Path, controller: str | None) -> Iterator[Path]:
    """The process's group and its visible ancestors. `controller` None means version 2."""
    path = _group_path(root, controller)
    mount = _mount(root, controller, path)
    if path is None or mount is None:
        return
    mount_root, mount_point = mount
    top = root / mount_point.lstrip("/")
    # Outside a container's subtree, or without a cgroup namespace, only the mount point is visible.
    inside = PurePosixPath(path).relative_to(mount_root) if _is_below(path, mount_root) else PurePosixPath()
    group = top / inside
    yield group
    while group != top:
        group = group.parent
        yield group


def _group_path(root: Path, controller: str | None) -> str | None:
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if (controllers == "") if controller is None else (controller in controllers.split(",")):
            return path
    return None


def _mount(root: Path, controller: str | None, path: str | None) -> tuple[str, str] | None:
    """Root and mount point of the hierarchy, preferably of a mount that contains `path`."""
    found = None
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        mount_root, mount_point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind != ("cgroup2" if controller is None else "cgroup"):
            continue
        if controller is not None and controller not in options.split(","):
            continue
        if found is None or _is_below(path or "", mount_root):
            found = (mount_root, mount_point)
    return found


def _is_below(path: str, parent: str) -> bool:
    return ".." not in path and PurePosixPath(path).is_relative_to(parent)
