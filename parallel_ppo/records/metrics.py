"""What is measured and where it is written: JSONL (the source of truth), TensorBoard (the same names, in
groups), resources.

Every column is defined in docs/metrics.md.
"""

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from parallel_ppo.storage.files import NEW_FILE, open_to_append, write_atomically
from parallel_ppo.storage.json_lines import Record, read_lines

LARGEST = 1e300
NOT_LEARNING = frozenset(
    [
        "fps",
        "fps_mean",
        "rollout_fps",
        "t_iter",
        "t_rollout",
        "t_learn",
        "t_sync",
        "t_sync_wait",
        "t_sync_transfer",
        "slowest_node",
        "nodes",
        "t_coordinator",
        "t_eval",
        "wall_time",
        "cpu_percent",
        "cpu_wait_percent",
        "cpu_steal_percent",
        "rss_mb",
        "num_workers",
        "world_size",
        "idle_share",
        "idle_collect",
        "idle_collect_worst",
        "idle_update",
        "idle_update_worst",
        "idle_workers",
        "share_collect",
        "share_gradients",
        "share_reduce",
        "share_exchange",
        "share_coordinator",
    ]
)


class JsonlLog:
    """One object per line, written at once. What a full disk refuses is kept, and written when there is
    room again.
    """

    def __init__(self, path: Path, last_iteration: int) -> None:
        """Cuts what lies beyond `last_iteration`, and a torn tail with it."""
        kept = [
            (line.data, line.record)
            for line in read_lines(path)
            if line.is_whole
            and line.record is not None
            and type(line.record.get("iteration")) is int
            and line.record["iteration"] <= last_iteration
        ]
        self.kept = [record for _, record in kept]
        write_atomically(path, b"".join(data for data, _ in kept))
        self.descriptor = open_to_append(path)
        self.size = os.fstat(self.descriptor).st_size
        self.pending = b""

    def write(self, records: list[Record]) -> None:
        """OSError leaves whole records in the file and the rest in memory, for the next call."""
        self.pending += "".join(json.dumps(record) + "\n" for record in records).encode()
        if not self.pending:
            return
        try:
            written = os.write(self.descriptor, self.pending)
            if written < len(self.pending):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += written
        self.pending = b""

    def sync(self) -> None:
        self.write([])
        os.fsync(self.descriptor)

    def close(self) -> None:
        """May be called twice."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                self.write([])
            os.close(self.descriptor)
            self.descriptor = -1


def tag(name: str) -> str:
    """The name of a column with its group in TensorBoard in front."""
    if name.startswith("episode"):
        return f"episodes/{name}"
    if name.startswith("eval_"):
        return f"evaluation/{name}"
    if name not in NOT_LEARNING:
        return f"learning/{name}"
    if name.startswith(("t_", "share_", "idle_")):
        return f"time/{name}"
    return f"speed/{name}" if "fps" in name else f"machine/{name}"


class TensorBoardLog:
    """A picture of the JSONL files; rebuilt from them when a run is resumed. Without a thread: nothing is
    written late.

    Opened by the first write: TensorBoard's import would delay the first environment step.
    """

    def __init__(self, directory: Path, records: list[Record], episodes: list[Record]) -> None:
        self.directory, self.earlier = directory, (records, episodes)
        self.writer: Any = None

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        for stale in self.directory.glob("events.out.tfevents.*"):
            stale.unlink()
        name = f"events.out.tfevents.{int(time.time())}.{os.getpid()}"
        self.file = open(os.open(self.directory / name, NEW_FILE, 0o666), "wb")  # noqa: SIM115
        self.writer = RecordWriter(self.file)
        self.writer.write(Event(file_version="brain.Event:2").SerializeToString())
        (records, episodes), self.earlier = self.earlier, ([], [])
        for episode in episodes:
            self.episode(episode)
        for record in records:
            self.record(record)
        self.file.flush()

    def record(self, record: Record) -> None:
        values = [(tag(k), v) for k, v in record.items() if k not in ("iteration", "steps_global")]
        self._write(record.get("steps_global"), values)
        self.file.flush()

    def episode(self, episode: Record) -> None:
        values = [(f"episodes/{name}", episode.get(name)) for name in ("return", "length")]
        self._write(episode.get("step"), values)

    def _write(self, step: Any, values: list[tuple[str, Any]]) -> None:
        """Records may have been edited by hand: what cannot be drawn is left out."""
        if self.writer is None:
            self._open()
        drawn = [
            self.summary.Value(tag=name, simple_value=float(value))
            for name, value in values
            if type(value) in (int, float) and (abs(value) < LARGEST or value != value)
        ]
        if type(step) is int and 0 <= step < 2**63:
            self.writer.write(self.event(step=step, summary=self.summary(value=drawn)).SerializeToString())

    def close(self) -> None:
        if self.writer is not None:
            with contextlib.suppress(OSError):
                self.file.close()


class ResourceMeter:
    """CPU and memory of all processes of the run, sampled at most every other second, and so seldom that
    it costs little: the kernel looks at every page, 15 ms for a process of ordinary size, in which the
    workers wait.
    """

    INTERVAL = 2.0
    COST = 1 / 200  # of the time, at most

    def __init__(self) -> None:
        self.sampled_at, self.next_at = float("-inf"), float("-inf")
        self.spent: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.cpu_percent = 0.0
        self.cpu_wait_percent: float | None = None
        self.cpu_steal_percent: float | None = None
        self.machine = (0, 0)
        self.rss_mb = 0.0
        self.peak_rss_mb = 0.0

    def sample(self, now: float, pids: list[int], *, is_last: bool = False) -> None:
        if now < self.next_at and not is_last:
            return
        began = time.monotonic()
        spent, waited, memory, machine = {}, {}, 0, ticks_of_all_cpus()
        for pid in [os.getpid(), *pids]:
            try:
                times = psutil.Process(pid).cpu_times()
                spent[pid] = times.user + times.system
                memory += proportional_bytes(pid)
                waited[pid] = seconds_without_core(pid)
            except (psutil.Error, OSError):
                continue
        if self.spent and now > self.sampled_at:
            seconds = now - self.sampled_at
            self.cpu_percent = _percent(self.spent, spent, seconds)
            self.cpu_wait_percent = _percent(self.waited, waited, seconds) if waited else None
            busy, stolen = (late - early for early, late in zip(self.machine, machine, strict=True))
            self.cpu_steal_percent = round(100 * stolen / (busy + stolen), 1) if busy + stolen > 0 else 0.0
        self.spent, self.waited, self.machine, self.sampled_at = spent, waited, machine, now
        self.rss_mb = round(memory / 1e6, 1)
        self.peak_rss_mb = max(self.peak_rss_mb, self.rss_mb)
        self.next_at = now + max(self.INTERVAL, (time.monotonic() - began) / self.COST)


def _percent(before: dict[int, float], now: dict[int, float], seconds: float) -> float:
    return round(100 * sum(value - before.get(pid, 0.0) for pid, value in now.items()) / seconds, 1)


def ticks_of_all_cpus() -> tuple[int, int]:
    """Since the machine started: at work, and when the host of a virtual machine ran something else."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    return user + nice + system + interrupts + soft, stolen


def seconds_without_core(pid: int) -> float:
    """How long a process's first thread could have run but had to wait for a core. OSError on kernels
    that do not count it.
    """
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


def proportional_bytes(pid: int) -> int:
    """Shared pages are divided by the number of processes that map them, so that the sum is what the run
    really uses.
    """
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
