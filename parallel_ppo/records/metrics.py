"""The table of metrics, and where they are written: JSONL (the source of truth) and TensorBoard.

`python tools/document.py` writes the table into docs/metrics.md.
"""

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.storage.files import CHUNK, NEW_FILE, open_to_append, write_atomically
from parallel_ppo.storage.json_lines import Record, read_lines

LARGEST = 1e300


class Metric(NamedTuple):
    """A column of metrics.jsonl. Those of LEARNING_GROUPS are equal in equal runs."""

    group: str  # in TensorBoard and in docs/metrics.md
    unit: str
    description: str


LEARNING_GROUPS = ("learning", "episodes", "evaluation")
METRICS = {
    "iteration": Metric("learning", "", "Completed iterations, from 1."),
    "steps_global": Metric("learning", "steps", "Environment steps so far, over all environments."),
    "policy_sha256": Metric(
        "learning", "", "Hash of the names, shapes and float32 bytes of all parameters after the iteration."
    ),
    "loss": Metric(
        "learning",
        "",
        "policy_loss + value_coef x value_loss - entropy_coef x entropy (+ augmentation_coef x"
        " augmentation_loss), mean over the minibatches.",
    ),
    "policy_loss": Metric("learning", "", "Policy loss, mean over the samples."),
    "value_loss": Metric(
        "learning",
        "",
        "Half the squared error of the value (clipped if `clip_value_loss`), mean over the samples.",
    ),
    "entropy": Metric("learning", "nats", "Entropy of the policy, mean over the samples."),
    "approx_kl": Metric("learning", "nats", "Mean of (ratio - 1 - log ratio), an estimate of KL(old, new)."),
    "clip_frac": Metric("learning", "", "Share of samples with a ratio outside 1 +- clip_range."),
    "augmentation_loss": Metric(
        "learning",
        "",
        "DrAC: KL between the policies on the original and the augmented image, plus half the squared"
        " difference of the values, mean over the samples.",
    ),
    "levels_seen": Metric("learning", "levels", "Prioritized level replay: levels that have a score."),
    "levels_effective": Metric(
        "learning",
        "levels",
        "Prioritized level replay: exp(entropy) of the distribution that levels are drawn from.",
    ),
    "explained_variance": Metric(
        "learning", "", "1 - Var(target - value) / Var(target), with the values of the collection."
    ),
    "grad_norm": Metric("learning", "", "Norm of the gradient before clipping, mean over the minibatches."),
    "learning_rate": Metric("learning", "", "Learning rate of this iteration."),
    "clip_range": Metric("learning", "", "Clip range of this iteration."),
    "policy_lag": Metric(
        "learning",
        "updates",
        "Updates between the parameters that collected a batch and those that learn from it.",
    ),
    "minibatches": Metric("learning", "", "Optimizer steps of this iteration."),
    "kl_stopped": Metric("learning", "", "1 if `target_kl` ended the update early."),
    "intrinsic_reward": Metric("learning", "", "Curiosity: mean intrinsic reward before scaling."),
    "intrinsic_reward_scaled": Metric("learning", "", "Curiosity: mean intrinsic reward after scaling."),
    "intrinsic_return": Metric(
        "learning", "", "Curiosity: discounted sum of unscaled intrinsic rewards, mean over the environments."
    ),
    "predictor_loss": Metric(
        "learning", "", "rnd, ngu: mean squared error of the predictor on the samples that train it."
    ),
    "inverse_loss": Metric(
        "learning",
        "",
        "icm, ngu: error of the predicted action: cross-entropy in nats, or half the squared error of"
        " continuous actions.",
    ),
    "forward_loss": Metric(
        "learning", "", "icm: half the squared distance between predicted and actual features."
    ),
    "episodic_memory_size": Metric(
        "learning", "", "ngu: embeddings in an episode's memory, mean over the environments."
    ),
    "predictor_grad_norm": Metric(
        "learning",
        "",
        "Curiosity: norm of the predictors' gradient before clipping, mean over the minibatches.",
    ),
    "intrinsic_value_loss": Metric("learning", "", "`value_loss` of the intrinsic value."),
    "intrinsic_explained_variance": Metric("learning", "", "`explained_variance` of the intrinsic value."),
    "episode_return_mean": Metric(
        "episodes", "", "Mean return of the last 100 finished episodes; null before the first."
    ),
    "episode_length_mean": Metric("episodes", "steps", "Mean length of the same episodes."),
    "episodes": Metric("episodes", "", "Finished episodes so far."),
    "success_rate": Metric(
        "episodes", "", "Share of this iteration's episodes that ended in success, if it is known."
    ),
    "eval_train_return": Metric(
        "evaluation", "", "Mean return of the evaluation on the training levels, if one was due."
    ),
    "eval_test_return": Metric(
        "evaluation", "", "The same on unseen levels (Procgen with `env.num_levels`)."
    ),
    "eval_gap": Metric("evaluation", "", "eval_train_return - eval_test_return."),
    "fps": Metric("speed", "steps/s", "Speed of this iteration: collection, update and logging."),
    "fps_mean": Metric("speed", "steps/s", "Mean speed of the session."),
    "rollout_fps": Metric("speed", "steps/s", "Speed of the collection alone."),
    "t_iter": Metric("time", "s", "Duration of the iteration, without evaluation."),
    "t_rollout": Metric("time", "s", "Collection."),
    "t_learn": Metric("time", "s", "Update."),
    "t_sync": Metric("time", "s", "Part of t_learn: exchange with other nodes, by the clock of node 0."),
    "t_sync_wait": Metric("time", "s", "Clusters: part of t_sync until the last node arrived."),
    "t_sync_transfer": Metric("time", "s", "Clusters: the rest of t_sync, in which bytes were transferred."),
    "t_coordinator": Metric(
        "time", "s", "Time in which only the coordinator worked: advantages, logging and the like."
    ),
    "t_eval": Metric("time", "s", "Evaluation; not part of t_iter and fps."),
    "share_collect": Metric("time", "", "Share of t_iter: collection."),
    "share_gradients": Metric("time", "", "Share of t_iter: gradients."),
    "share_reduce": Metric("time", "", "Share of t_iter: sums of gradients."),
    "share_exchange": Metric("time", "", "Share of t_iter: exchange with other nodes."),
    "share_coordinator": Metric("time", "", "Share of t_iter: only the coordinator works."),
    "idle_collect": Metric(
        "time", "", "Share of the collection in which a worker was idle, mean over the workers."
    ),
    "idle_collect_worst": Metric("time", "", "The same for the worker that was idle longest."),
    "idle_update": Metric(
        "time", "", "Share of the update in which a worker was idle, mean over the workers."
    ),
    "idle_update_worst": Metric("time", "", "The same for the worker that was idle longest."),
    "idle_workers": Metric("time", "", "Idle share of each worker, as a list (not in TensorBoard)."),
    "idle_share": Metric(
        "time", "", "Share of the iteration in which a worker was idle, mean over the workers."
    ),
    "world_size": Metric("machine", "", "Nodes."),
    "num_workers": Metric("machine", "", "Worker processes of a node."),
    "slowest_node": Metric("machine", "", "Clusters: the node that the others waited for."),
    "nodes": Metric(
        "machine",
        "",
        "Clusters: name, seconds, workers, restarts, bytes and messages of each node, as a list.",
    ),
    "wall_time": Metric("machine", "s", "Training time so far, over all sessions."),
    "cpu_percent": Metric(
        "machine", "%", "CPU time of all processes of the run; 100 is one core. Sampled at most every 2 s."
    ),
    "cpu_wait_percent": Metric(
        "machine", "%", "Time in which processes of the run waited for a core; null if unknown."
    ),
    "cpu_steal_percent": Metric(
        "machine", "%", "Share of the wanted CPU time that the host of a virtual machine gave to others."
    ),
    "rss_mb": Metric(
        "machine", "MB", "Proportional set size of all processes (shared pages count once), in 10^6 bytes."
    ),
}
NOT_LEARNING = frozenset(name for name, metric in METRICS.items() if metric.group not in LEARNING_GROUPS)


def tag(name: str) -> str:
    """The name of a column in TensorBoard. Names of the user, such as `info/x`, have a group."""
    if "/" in name:
        return name
    return f"{METRICS[name].group if name in METRICS else 'learning'}/{name}"


class JsonlLog:
    """One object per line, written at once. Lines that a full disk refuses are written later."""

    def __init__(self, path: Path, last_iteration: int) -> None:
        """Cuts lines after `last_iteration` and a torn last line. Streams the file, which may have millions."""
        self.path = path
        write_atomically(path, self._kept(last_iteration))
        self.descriptor = open_to_append(path)
        self.size = self.num_earlier_bytes = os.fstat(self.descriptor).st_size
        self.pending = b""

    def earlier(self) -> Iterator[Record]:
        """The records of earlier sessions."""
        for line in read_lines(self.path):
            if line.end > self.num_earlier_bytes:
                return
            if line.record is not None:
                yield line.record

    def _kept(self, last_iteration: int) -> Iterator[bytes]:
        kept = bytearray()
        for line in read_lines(self.path):
            iteration = (line.record or {}).get("iteration")
            if line.is_whole and type(iteration) is int and iteration <= last_iteration:
                kept += line.data
            if len(kept) > CHUNK:
                yield bytes(kept)
                kept.clear()
        yield bytes(kept)

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
        if not self.path.exists():
            raise FileNotFoundError(errno.ENOENT, "was deleted during the run", str(self.path))

    def close(self) -> None:
        """May be called twice."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                self.write([])
            os.close(self.descriptor)
            self.descriptor = -1


class TensorBoardLog:
    """A copy of the JSONL files for TensorBoard, rebuilt when a run is resumed.

    It has no thread, so nothing is written late. The first write opens it: importing TensorBoard earlier would
    delay the first environment step.
    """

    def __init__(
        self, directory: Path, records: Iterable[Record], episodes: Iterable[Record], began: float
    ) -> None:
        """`records` and `episodes` of earlier sessions are read when the file is opened. `began`: the Unix time
        at which the run would have begun without a pause between its sessions.
        """
        self.directory, self.earlier, self.began = directory, (records, episodes), began
        self.times: dict[str, float] = {}  # at which iterations ended
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
        self.add(records, episodes)

    def add(self, records: Iterable[Record], episodes: Iterable[Record]) -> None:
        if self.writer is None:
            self._open()
        for record in records:
            elapsed = record.get("wall_time")
            now = self.began + (elapsed if type(elapsed) is float and abs(elapsed) < LARGEST else 0.0)
            self.times[str(record.get("iteration"))] = now
            values = [(tag(k), v) for k, v in record.items() if k not in ("iteration", "steps_global")]
            self._write(record.get("steps_global"), now, values)
        for episode in episodes:
            values = [(f"episodes/{name}", episode.get(name)) for name in ("return", "length")]
            now = self.times.get(str(episode.get("iteration")), self.began)
            self._write(episode.get("step"), now, values)
        self.file.flush()

    def _write(self, step: Any, now: float, values: list[tuple[str, Any]]) -> None:
        """Records may have been edited by hand: what cannot be drawn is left out."""
        drawn = [
            self.summary.Value(tag=name.encode(errors="replace").decode(), simple_value=float(value))
            for name, value in values
            if type(value) in (int, float) and (abs(value) < LARGEST or value != value)
        ]
        if type(step) is int and 0 <= step < 2**63:
            event = self.event(wall_time=now, step=step, summary=self.summary(value=drawn))
            self.writer.write(event.SerializeToString())

    def close(self) -> None:
        if self.writer is not None:
            with contextlib.suppress(OSError):
                self.file.close()


class ResourceMeter:
    """CPU and memory of all processes of the run, sampled at most every other second.

    Memory is sampled less often: the kernel reads every page, some 15 ms for each process, and the workers wait.
    """

    INTERVAL = 2.0
    COST = 1 / 200  # of the time, at most, for memory

    def __init__(self) -> None:
        self.sampled_at = self.next_memory_at = float("-inf")
        self.spent: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.cpu_percent = 0.0
        self.cpu_wait_percent: float | None = None
        self.cpu_steal_percent: float | None = None
        self.machine = (0, 0)
        self.rss_mb = 0.0
        self.peak_rss_mb = 0.0

    def sample(self, now: float, pids: list[int], *, is_last: bool = False) -> None:
        every = [os.getpid(), *pids]
        if is_last or now >= self.sampled_at + self.INTERVAL:
            self._sample_cpu(now, every)
        if is_last or now >= self.next_memory_at:
            began = time.monotonic()
            self.rss_mb = round(sum(_each(every, proportional_bytes).values()) / 1e6, 1)
            self.peak_rss_mb = max(self.peak_rss_mb, self.rss_mb)
            self.next_memory_at = now + max(self.INTERVAL, (time.monotonic() - began) / self.COST)

    def _sample_cpu(self, now: float, pids: list[int]) -> None:
        spent, waited = _each(pids, cpu_seconds), _each(pids, seconds_without_core)
        machine = ticks_of_all_cpus()
        if self.spent and now > self.sampled_at:
            seconds = now - self.sampled_at
            self.cpu_percent = _percent(self.spent, spent, seconds)
            self.cpu_wait_percent = _percent(self.waited, waited, seconds) if waited else None
            busy, stolen = (late - early for early, late in zip(self.machine, machine, strict=True))
            self.cpu_steal_percent = round(100 * stolen / (busy + stolen), 1) if busy + stolen > 0 else 0.0
        self.spent, self.waited, self.machine, self.sampled_at = spent, waited, machine, now


def _each(pids: list[int], measure: Callable[[int], float]) -> dict[int, float]:
    """Without processes that have ended."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = measure(pid)
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def _percent(before: dict[int, float], now: dict[int, float], seconds: float) -> float:
    return round(100 * sum(value - before.get(pid, 0.0) for pid, value in now.items()) / seconds, 1)


def ticks_of_all_cpus() -> tuple[int, int]:
    """Since boot: busy, and stolen by the host of a virtual machine."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    return user + nice + system + interrupts + soft, stolen


def seconds_without_core(pid: int) -> float:
    """The time that the first thread waited for a core. OSError on kernels that do not count it."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


def proportional_bytes(pid: int) -> int:
    """A shared page is divided among the processes that map it, so that the sum is the memory in use."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
