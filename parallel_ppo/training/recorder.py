"""Metrics, episodes, TensorBoard, checkpoints and the display of a run."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.cluster.cluster import NodeReport
from parallel_ppo.exits import StorageError
from parallel_ppo.features.episodes import RECENT, episode_columns
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.policies.parameters import sha256, views
from parallel_ppo.records.metrics import JsonlLog, Record, ResourceMeter, TensorBoardLog
from parallel_ppo.records.timeline import (
    Timeline,
    idle_shares,
    phase_shares,
    process_started,
    seconds_alone,
)
from parallel_ppo.records.trace import Trace
from parallel_ppo.records.trackers import Trackers
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.storage.array_files import pieces_of
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training.bottleneck import Tally
from parallel_ppo.training.callbacks import Callbacks, Wishes
from parallel_ppo.training.checkpoint import POLICY
from parallel_ppo.training.run import Iteration, Run
from parallel_ppo.training.saving import Keeper
from parallel_ppo.workers.tasks import COLLECT

MAX_REDRAWN = 16 << 20  # bytes of earlier episodes that TensorBoard shows; of more, an even sample
NOW = "now.safetensors"  # the policy that a callback asked for
MAX_LOG_FAILURES = 100  # consecutive iterations with records that could only be kept in memory


class Recorder:
    def __init__(self, run: Run, trace: Trace | None, callbacks: Callbacks) -> None:
        self.run, self.settings, self.spec, self.policy = run, run.settings, run.plan.spec, run.policy
        self.directory, self.display, self.cluster = run.plan.directory, run.display, run.cluster
        self.trace, self.timeline, self.tally = trace, Timeline(), Tally()
        self.callbacks = callbacks
        settings, directory, display = run.settings, self.directory, run.display
        last_iteration = run.state.counters.iteration
        self.metrics = JsonlLog(directory.root / "metrics.jsonl", last_iteration)
        self.episodes = JsonlLog(directory.root / "episodes.jsonl", last_iteration)
        self.log_failures = 0
        self._check_complete(last_iteration)
        self.tensorboard: TensorBoardLog | None = None
        if settings.logging.tensorboard:
            try:
                every = 1 + self.episodes.num_earlier_bytes // MAX_REDRAWN
                earlier = itertools.islice(self.episodes.earlier(), 0, None, every)
                began = time.time() - run.state.counters.wall_time
                self.tensorboard = TensorBoardLog(
                    directory.root / "logs", self.metrics.earlier(), earlier, began
                )
            except OSError as error:
                self._without_tensorboard(error)
        self.trackers = Trackers(settings.logging.trackers, directory.root, display.warn)
        self.keeper = Keeper(directory.checkpoints, keep=settings.logging.keep_checkpoints, warn=display.warn)
        self.meter = ResourceMeter()
        self.saved_at, self.saved_iteration = time.monotonic(), last_iteration
        self.first_steps: int | None = None
        self.checkpoint_seconds = 0.0
        self.startup_seconds: float | None = None
        self.best_return: float | None = None
        self.wants_save = False  # a callback asked for a checkpoint
        self.evaluated: float | None = None  # mean return of an evaluation since the last checkpoint

    def show(self, name: str) -> None:
        """Names the phases that follow on the display."""
        self.display.phase(name)

    def phase(self, name: str) -> None:
        self.show(name)
        self.timeline.enter(name)

    # --- metrics --------------------------------------------------------------------------------------------

    def record(self, finished: Iteration) -> None:
        self.phase("record")
        state, pool = self.run.state, self.run.pool
        counters, steps = state.counters, self.settings.sizes.steps_per_iteration
        if self.first_steps is None:
            self.first_steps, self.started = counters.env_steps - steps, finished.began
            self.startup_seconds = finished.began - process_started()
        now, phases = time.monotonic(), self.timeline.take()
        updating = [phase for phase in phases if finished.collected <= phase.started < finished.learned]
        self.meter.sample(now, pool.pids)
        seconds_evaluated = finished.evaluation.get("t_eval", 0.0)
        t_iter, t_rollout = now - finished.began - seconds_evaluated, finished.collected - finished.began
        t_learn = finished.learned - finished.collected
        busy = sum(span.seconds for span in finished.spans) / pool.num_workers
        record: Record = {
            "iteration": counters.iteration,
            "steps_global": counters.env_steps,
            "world_size": len(finished.nodes),
            "num_workers": pool.num_workers,
            "policy_sha256": sha256(self.policy, state.parameters),
            "fps": steps / t_iter,
            "fps_mean": (counters.env_steps - self.first_steps) / (now - self.started),
            "rollout_fps": steps / max(t_rollout, _seconds_collecting(finished)),
            "t_iter": t_iter,
            "t_rollout": t_rollout,
            "t_learn": t_learn,
            **sync_columns(finished.nodes),
            "t_coordinator": seconds_alone(updating) + now - finished.learned - seconds_evaluated,
            "idle_share": max(0.0, 1 - busy / t_iter),
            **phase_shares(updating, t_rollout=t_rollout, t_iter=t_iter),
            **idle_shares(finished.spans, pool.num_workers, collect=t_rollout, update=t_learn),
            **finished.columns,
            **finished.evaluation,
            "episode_return_mean": _mean(state.episodes.recent_returns),
            "episode_length_mean": _mean(state.episodes.recent_lengths),
            "episodes": counters.episodes,
            **episode_columns(finished.episodes, self.settings.env.info_keys),
            "wall_time": counters.wall_time,
            "cpu_percent": self.meter.cpu_percent,
            "cpu_wait_percent": self.meter.cpu_wait_percent,
            "cpu_steal_percent": self.meter.cpu_steal_percent,
            "rss_mb": self.meter.rss_mb,
        }
        if self.settings.evaluation.chooses_best and finished.evaluation:
            columns = finished.evaluation
            self.evaluated = columns.get("eval_test_return", columns["eval_train_return"])
        wishes = Wishes(self._write_policy)
        self.callbacks(record, wishes)
        record |= wishes.numbers
        self.wants_save |= wishes.save
        self._write(record, [episode.as_dict(self.settings.env.info_keys) for episode in finished.episodes])
        self.trackers.report()
        self.tally.add(record)
        if self.trace:
            self.trace.add(phases, finished.spans)
        self.display.show(record)

    @property
    def checkpoint_share(self) -> float:
        """The checkpoints' share of the time of the session's iterations and checkpoints."""
        return self.checkpoint_seconds / (self.tally.seconds + self.checkpoint_seconds or 1.0)

    def _write(self, record: Record, rows: list[Record]) -> None:
        """A full disk does not stop the run: the records wait in memory, and checkpoints wait for them."""
        failure: OSError | None = None
        for log, records in ((self.metrics, [record]), (self.episodes, rows)):
            try:
                log.write(records)
            except OSError as error:
                failure = error
        self.log_failures = 0 if failure is None else self.log_failures + 1
        if failure is not None:
            detail = (
                f"{self.directory.root}: metrics could not be written ({failure.strerror}); they are kept in"
                " memory"
            )
            if self.log_failures >= MAX_LOG_FAILURES:
                raise StorageError(
                    f"{detail}; this was failure {self.log_failures} in a row: free some space and use"
                    " --resume"
                )
            if self.log_failures == 1:
                self.display.warn(detail)
        if self.tensorboard is not None:
            try:
                self.tensorboard.add([record], rows)
            except OSError as error:
                self._without_tensorboard(error)

    def _without_tensorboard(self, error: OSError) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        self.tensorboard = None
        self.display.warn(
            f"{self.directory.root / 'logs'}: TensorBoard files cannot be written ({error.strerror});"
            " --resume rebuilds them"
        )

    def _check_complete(self, last_iteration: int) -> None:
        """Records cannot be missing unless another program removed them; the run goes on with a warning."""
        num_lines = num_right = 0
        for num_lines, record in enumerate(self.metrics.earlier(), 1):
            num_right += record["iteration"] == num_lines
        if not num_right == num_lines == last_iteration:
            self.display.warn(
                f"{self.directory.root / 'metrics.jsonl'}: was changed or damaged; {num_right} of"
                f" {last_iteration} iterations are in their place"
            )

    def _sync_logs(self) -> None:
        self.metrics.sync()
        self.episodes.sync()

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save_if_due(self, snapshot: Snapshot) -> None:
        logging, iteration = self.settings.logging, snapshot.counters["iteration"]
        by_count = (
            logging.checkpoint_iterations is not None
            and iteration - self.saved_iteration >= logging.checkpoint_iterations
        )
        is_due = by_count or time.monotonic() - self.saved_at >= logging.checkpoint_interval
        is_due |= self.wants_save
        is_due |= self.evaluated is not None and self._is_best(snapshot)[0]
        if self.cluster.decide("save" if is_due else None):
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> bool:
        self.phase("checkpoint")
        began = time.monotonic()
        self.cluster.gather_environments(snapshot.environments)
        is_best, best_return = self._is_best(snapshot)
        snapshot.counters["best_return"] = best_return
        parameters = torch.from_numpy(snapshot.arrays["parameters"])
        done = self.keeper.save(
            snapshot,
            before=self._sync_logs,
            is_best=is_best,
            weights=self.weights(snapshot),
            metadata=self.metadata(snapshot),
            policy_sha256=sha256(self.policy, parameters),
            learning=learning_settings(self.settings),
        )
        if done:
            self.best_return = snapshot.counters["best_return"]
        self.evaluated, self.wants_save = None, False
        self.saved_at, self.saved_iteration = time.monotonic(), snapshot.counters["iteration"]
        self.checkpoint_seconds += self.saved_at - began
        return done

    def _is_best(self, snapshot: Snapshot) -> tuple[bool, float | None]:
        known = [best for best in (snapshot.counters["best_return"], self.best_return) if best is not None]
        best = max(known, default=None)
        if not self.settings.evaluation.chooses_best:
            return is_best_yet(snapshot.arrays["recent.returns"], best)
        is_best = self.evaluated is not None and (best is None or self.evaluated >= best)
        return is_best, self.evaluated if is_best else best

    def weights(self, snapshot: Snapshot) -> dict[str, np.ndarray]:
        parameters = views(self.policy, torch.from_numpy(snapshot.arrays["parameters"]))
        arrays = {name: np.ascontiguousarray(view.numpy()) for name, view in parameters.items()}
        if self.settings.training.normalize_observations:
            arrays |= {
                f"observations.{key}": snapshot.arrays[f"observations.{key}"]
                for key in ("count", "mean", "squares")
            }
        return arrays

    def metadata(self, snapshot: Snapshot) -> dict[str, str]:
        """With this, evaluation can use the weights without the run directory."""
        settings = json.dumps(self.settings.model_dump())
        return {
            "format": "parallel_ppo policy 1",
            "settings": settings,
            "signature": signature(settings.encode()) or "",
            "spec": json.dumps(self.spec.as_json()),
            "env_steps": str(snapshot.counters["env_steps"]),
        }

    def _write_policy(self) -> Path:
        """For callbacks: the weights as they are now."""
        path, snapshot = self.directory.checkpoints / NOW, self.run.state.snapshot()
        write_atomically(path, b"".join(pieces_of(self.weights(snapshot), self.metadata(snapshot))))
        return path.absolute()

    def save_final(self, snapshot: Snapshot, name: str) -> None:
        """The weights alone, under a descriptive name."""
        source = self.directory.checkpoints / f"step_{snapshot.counters['env_steps']}" / POLICY
        write_atomically(self.directory.checkpoints / name, source.read_bytes())

    def close(self) -> None:
        self.timeline.leave()
        if self.trace:
            self.trace.add(self.timeline.take(), [])
            self.trace.close()
        self.metrics.close()
        self.episodes.close()
        self.trackers.close()
        if self.tensorboard is not None:
            self.tensorboard.close()


def _seconds_collecting(finished: Iteration) -> float:
    """From the first step on, which workers may take while the earlier iteration is recorded."""
    started = [span.started for span in finished.spans if span.task.kind == COLLECT]
    return finished.collected - min(started, default=finished.began)


class Follower:
    """On the nodes that do not lead: one line per iteration in their own log. The files of the run are the
    first node's.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.cluster, self.display, self.timeline = run, run.cluster, run.display, Timeline()
        self.meter, self.checkpoint_seconds = ResourceMeter(), 0.0
        self.startup_seconds: float | None = None

    def show(self, name: str) -> None:
        self.display.phase(name)

    def phase(self, name: str) -> None:
        self.show(name)

    def record(self, finished: Iteration) -> None:
        self.timeline.take()
        counters = self.run.state.counters
        own = finished.nodes[self.cluster.node.rank]
        self.display.note(
            f"iteration {counters.iteration}  step {counters.env_steps:,}  collect"
            f" {own.t_rollout:.2f} s  update {own.t_learn:.2f} s  waited {own.t_wait:.2f} s  transfer"
            f" {own.t_transfer:.2f} s"
        )

    def save_if_due(self, snapshot: Snapshot) -> None:
        if self.cluster.decide(None):
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> bool:
        self.phase("checkpoint")
        self.cluster.gather_environments(snapshot.environments)
        return True

    def save_final(self, snapshot: Snapshot, name: str) -> None:
        pass

    def close(self) -> None:
        pass


def is_best_yet(returns: np.ndarray, best: float | None) -> tuple[bool, float | None]:
    """Returns whether a checkpoint with these recent returns is the best so far, and the best mean return.

    Only full windows are compared: a few lucky episodes prove nothing. Of equal ones the newer is better,
    and until the first full one the newest.
    """
    if len(returns) < RECENT:
        return best is None, best
    mean = float(returns.mean())
    return (True, mean) if best is None or mean >= best else (False, best)


def sync_columns(reports: list[NodeReport]) -> Record:
    """The first node's time with the others. With several nodes also theirs, and the slowest: it waited least."""
    first = reports[0]
    columns: Record = {"t_sync": first.t_wait + first.t_transfer}
    if len(reports) > 1:
        columns |= {
            "t_sync_wait": first.t_wait,
            "t_sync_transfer": first.t_transfer,
            "slowest_node": min(reports, key=lambda report: report.t_wait).name,
            "nodes": [report._asdict() for report in reports],
        }
    return columns


def _mean(values: Any) -> float | None:
    return plain_sum(values) / len(values) if values else None
