"""W&B, MLflow and Trackio behind one protocol. Their packages are imported here only, in the tracker's
process.

Where runs go is theirs to say: each package's own environment variables and logins count.
"""

import contextlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from parallel_ppo.records.metrics import LARGEST, Record

PROJECT = "parallel_ppo"
MLFLOW_RECORDS, MLFLOW_PARAMS = 20, 100  # of one request, which takes at most 1000 metrics
MLFLOW_VALUE = 500  # characters
MLFLOW_TABLES = """
import sys
address, sys.path[:] = sys.argv[1], sys.argv[2:]
import mlflow
mlflow.MlflowClient(address).search_experiments()
"""


class Keeps(Protocol):
    """`tracker_process.State`."""

    run_id: str
    sent: int
    segment: str | None

    def write(self) -> None: ...


class Tracker(Protocol):
    last: int  # environment steps of the newest record that is known to be there; 0 where nobody can tell

    def __init__(self, state: Keeps, root: Path, description: dict[str, Any]) -> None:
        """Opens the run, or continues it."""

    def send(self, records: list[Record]) -> None: ...

    def close(self, is_finished: bool) -> None:
        """Afterwards everything that was sent is safe."""


def numbers(record: Record) -> dict[str, float]:
    return {
        key: value
        for key, value in record.items()
        if type(value) in (int, float) and math.isfinite(value) and abs(value) < LARGEST
    }


class Wandb:
    """Online, W&B says where a run stands. Offline it cannot: every start writes a segment under the same
    id, and one that was not closed is thrown away and written again.
    """

    def __init__(self, state: Keeps, root: Path, description: dict[str, Any]) -> None:
        import wandb

        _discard_segment(state, root)
        os.environ.setdefault("WANDB_DIR", str(root / "logs"))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=state.run_id,
            name=os.environ.get("WANDB_NAME", root.resolve().name),
            resume="allow" if os.environ.get("WANDB_MODE") != "offline" else None,
            config=description,
            reinit="finish_previous",
            settings=wandb.Settings(
                console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
            ),
        )
        self.last = max(0, self.run.starting_step - 1)
        if self.run.offline:
            state.segment = str(Path(self.run.dir).resolve().parent)
            state.write()

    def send(self, records: list[Record]) -> None:
        for record in records:
            values: dict[str, Any] = dict(numbers(record))
            self.run.log(values | {"policy_sha256": record.get("policy_sha256")}, step=record["steps_global"])

    def close(self, is_finished: bool) -> None:
        self.run.finish(exit_code=0 if is_finished else 1)


def _discard_segment(state: Keeps, root: Path) -> None:
    """Only what W&B wrote for this run: anyone may have written the state of a run that was copied from
    elsewhere.
    """
    folder = Path(state.segment or "")
    expected = Path(os.environ.get("WANDB_DIR", root / "logs")).resolve() / "wandb"
    own = folder.name.startswith("offline-run-") and folder.name.endswith(f"-{state.run_id}")
    if own and folder.parent == expected and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


class Mlflow:
    """A record's time follows from the run: whatever is sent twice is the same metric."""

    def __init__(self, state: Keeps, root: Path, description: dict[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        _make_database(mlflow.get_tracking_uri())
        self.metric, self.tag, self.client = Metric, RunTag, mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self.client.create_experiment(name)
        query = f"tags.`parallel_ppo.id` = '{state.run_id}'"
        run = next(iter(self.client.search_runs([experiment], query, max_results=1)), None)
        if run is None:
            tags = {"parallel_ppo.id": state.run_id}
            run = self.client.create_run(experiment, run_name=root.resolve().name, tags=tags)
        self.run_id, self.started = run.info.run_id, run.info.start_time
        self.last = int(run.data.metrics.get("steps_global", 0))
        parameters = [Param(key, str(value)[:MLFLOW_VALUE]) for key, value in description.items()]
        for some in _pieces([item for item in parameters if item.key not in run.data.params], MLFLOW_PARAMS):
            self.client.log_batch(self.run_id, params=some)
        self.client.update_run(self.run_id, status="RUNNING")

    def send(self, records: list[Record]) -> None:
        """The steps come last: where they are, all of the record is."""
        for some in _pieces(records, MLFLOW_RECORDS):
            self.client.log_batch(
                self.run_id, metrics=[metric for record in some for metric in self._metrics(record)]
            )
        tags = [self.tag("policy_sha256", str(records[-1].get("policy_sha256")))]
        self.client.log_batch(self.run_id, tags=tags)

    def _metrics(self, record: Record) -> list[Any]:
        values = numbers(record)
        at, step = self.started + int(1000 * values.get("wall_time", 0)), values.pop("steps_global")
        return [self.metric(key, value, at, step) for key, value in (*values.items(), ("steps_global", step))]

    def close(self, is_finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if is_finished else "KILLED")


def _make_database(address: str) -> None:
    """A new SQLite file appears when it is whole: one in which MLflow was killed while it made its tables
    is one that it never opens again.
    """
    path = Path(address.removeprefix("sqlite:///").partition("?")[0])
    if not address.startswith("sqlite:///") or path.exists() or not path.parent.is_dir():
        return
    descriptor, name = tempfile.mkstemp(prefix=".new-", suffix=path.name, dir=path.parent)
    os.close(descriptor)
    try:
        # in a process of its own, so that nobody has the file open under its first name
        made = subprocess.run([sys.executable, "-c", MLFLOW_TABLES, f"sqlite:///{name}", *sys.path])
        if made.returncode == 0:
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
    finally:
        os.unlink(name)


def _pieces(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))


class Trackio:
    def __init__(self, state: Keeps, root: Path, description: dict[str, Any]) -> None:
        import trackio

        self.run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{root.resolve().name}-{state.run_id[:6]}",
            resume="allow",
            config=description,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.last = max(0, getattr(self.run, "_next_step", 0) - 1)

    def send(self, records: list[Record]) -> None:
        for record in records:
            values: dict[str, Any] = dict(numbers(record))
            self.run.log(values | {"policy_sha256": record.get("policy_sha256")}, step=record["steps_global"])

    def close(self, is_finished: bool) -> None:
        self.run.finish()


SERVICES: dict[str, type[Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
