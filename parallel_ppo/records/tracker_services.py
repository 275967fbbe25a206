"""W&B, MLflow and Trackio behind one interface. Their packages are imported here only, in the tracker's
process. Each package's own environment variables and logins decide where runs go.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from parallel_ppo.records.metrics import LARGEST, Record

PROJECT = "parallel_ppo"
MLFLOW_RECORDS, MLFLOW_PARAMS = 20, 100  # of one request, which takes at most 1000 metrics
MLFLOW_VALUE = 500  # characters


class Tracker(Protocol):
    last: int  # environment steps of the newest record that the tracker has; 0 if unknown

    def __init__(self, run_id: str, root: Path, description: dict[str, Any]) -> None:
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
    """Offline, every start writes a segment under the same id; `wandb sync` joins them."""

    def __init__(self, run_id: str, root: Path, description: dict[str, Any]) -> None:
        import wandb

        os.environ.setdefault("WANDB_DIR", str(root / "logs"))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            name=os.environ.get("WANDB_NAME", root.resolve().name),
            resume="allow" if os.environ.get("WANDB_MODE") != "offline" else None,
            config=description,
            reinit="finish_previous",
            settings=wandb.Settings(
                console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
            ),
        )
        self.last = max(0, self.run.starting_step - 1)

    def send(self, records: list[Record]) -> None:
        for record in records:
            values: dict[str, Any] = dict(numbers(record))
            self.run.log(values | {"policy_sha256": record.get("policy_sha256")}, step=record["steps_global"])

    def close(self, is_finished: bool) -> None:
        self.run.finish(exit_code=0 if is_finished else 1)


class Mlflow:
    """A record's time follows from the run, so that a record sent twice is the same metric."""

    def __init__(self, run_id: str, root: Path, description: dict[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        self.metric, self.tag, self.client = Metric, RunTag, mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self.client.create_experiment(name)
        query = f"tags.`parallel_ppo.id` = '{run_id}'"
        run = next(iter(self.client.search_runs([experiment], query, max_results=1)), None)
        if run is None:
            tags = {"parallel_ppo.id": run_id}
            run = self.client.create_run(experiment, run_name=root.resolve().name, tags=tags)
        self.run_id, self.started = run.info.run_id, run.info.start_time
        self.last = int(run.data.metrics.get("steps_global", 0))
        parameters = [Param(key, str(value)[:MLFLOW_VALUE]) for key, value in description.items()]
        for some in _pieces([item for item in parameters if item.key not in run.data.params], MLFLOW_PARAMS):
            self.client.log_batch(self.run_id, params=some)
        self.client.update_run(self.run_id, status="RUNNING")

    def send(self, records: list[Record]) -> None:
        """`steps_global` comes last: once it has arrived, the whole record has."""
        for some in _pieces(records, MLFLOW_RECORDS):
            metrics = [metric for record in some for metric in self._metrics(record)]
            self.client.log_batch(self.run_id, metrics=metrics)
        tags = [self.tag("policy_sha256", str(records[-1].get("policy_sha256")))]
        self.client.log_batch(self.run_id, tags=tags)

    def _metrics(self, record: Record) -> list[Any]:
        values = numbers(record)
        at, step = self.started + int(1000 * values.get("wall_time", 0)), values.pop("steps_global")
        return [self.metric(key, value, at, step) for key, value in (*values.items(), ("steps_global", step))]

    def close(self, is_finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if is_finished else "KILLED")


def _pieces(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))


class Trackio:
    def __init__(self, run_id: str, root: Path, description: dict[str, Any]) -> None:
        import trackio

        self.run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{root.resolve().name}-{run_id[:6]}",
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
