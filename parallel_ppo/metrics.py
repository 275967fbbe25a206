"""What is measured and where it is written: JSONL (the source of truth), TensorBoard (the same names), resources.

Every column is defined in docs/metrics.md.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import psutil

Record = dict[str, Any]
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
        "share_coordinator",
    ]
)


def read_records(path: Path) -> Iterator[Record]:
    """Whole records only: a torn or damaged tail ends the file."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not isinstance(record, dict):
                return
            yield record


class JsonlLog:
    """One object per line, flushed at once."""

    def __init__(self, path: Path, last_iteration: int) -> None:
        """Cuts what lies beyond `last_iteration`, and a torn tail with it."""
        kept = [record for record in read_records(path) if record.get("iteration", 0) <= last_iteration]
        temporary = path.with_name(f".{path.name}.tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.kept = kept
        self.file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, records: list[Record]) -> None:
        self.file.write("".join(json.dumps(record) + "\n" for record in records))
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoardLog:
    """A picture of the JSONL files; rebuilt from them when a run is resumed.

    Opened by the first write: TensorBoard's import would delay the first environment step.
    """

    def __init__(self, directory: Path, records: list[Record], episodes: list[Record]) -> None:
        self.directory, self.earlier = directory, (records, episodes)
        self.writer: Any = None

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = Event, Summary
        for stale in self.directory.glob("events.out.tfevents.*"):
            stale.unlink()
        self.writer = EventFileWriter(str(self.directory))
        (records, episodes), self.earlier = self.earlier, ([], [])
        for episode in episodes:
            self.episode(episode)
        for record in records:
            self.record(record)

    def record(self, record: Record) -> None:
        values = [
            (name, value)
            for name, value in record.items()
            if isinstance(value, (int, float)) and name not in ("iteration", "steps_global")
        ]
        self._write(record["steps_global"], values)

    def episode(self, episode: Record) -> None:
        self._write(
            episode["step"], [("episode/return", episode["return"]), ("episode/length", episode["length"])]
        )

    def _write(self, step: int, values: list[tuple[str, float]]) -> None:
        if self.writer is None:
            self._open()
        summary = self.summary(
            value=[self.summary.Value(tag=name, simple_value=float(value)) for name, value in values]
        )
        self.writer.add_event(self.event(step=step, summary=summary))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class ResourceMeter:
    """CPU and memory of all processes of the run, sampled at most every other second: reading costs milliseconds."""

    INTERVAL = 2.0

    def __init__(self) -> None:
        self.sampled_at = float("-inf")
        self.last_cpu: dict[int, float] = {}
        self.cpu_percent = 0.0
        self.rss_mb = 0.0
        self.peak_rss_mb = 0.0

    def sample(self, now: float, pids: list[int]) -> None:
        if now - self.sampled_at < self.INTERVAL:
            return
        cpu, memory = {}, 0
        for pid in [os.getpid(), *pids]:
            try:
                times = psutil.Process(pid).cpu_times()
                cpu[pid] = times.user + times.system
                memory += _proportional_bytes(pid)
            except (psutil.Error, OSError):
                continue
        if self.last_cpu:
            spent = sum(seconds - self.last_cpu.get(pid, 0.0) for pid, seconds in cpu.items())
            self.cpu_percent = round(100 * spent / (now - self.sampled_at), 1)
        self.last_cpu, self.sampled_at = cpu, now
        self.rss_mb = round(memory / 1e6, 1)
        self.peak_rss_mb = max(self.peak_rss_mb, self.rss_mb)


def _proportional_bytes(pid: int) -> int:
    """Shared pages are divided by the number of processes that map them, so that the sum is what the run really uses."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
