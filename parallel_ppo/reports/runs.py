"""Reading a run directory, finished or not.

A run in progress is as good as a finished one: what is on disk is taken, a torn last line is left out, and
`Run.notes` says so. Only what leaves nothing to report is an `InputError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parallel_ppo.exits import InputError

METRICS = "metrics.jsonl"
EPISODES = "episodes.jsonl"
CONFIG = "config.yaml"
RUN_INFO = "run.json"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Episodes:
    """The finished episodes in the order of the file; one entry each."""

    iteration: np.ndarray
    step: np.ndarray
    returns: np.ndarray
    length: np.ndarray


@dataclass(frozen=True)
class Run:
    path: Path
    columns: dict[str, np.ndarray]  # one float per iteration; NaN where the run wrote none
    policy_sha256: tuple[str | None, ...]
    config: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    episodes: Episodes | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.policy_sha256)

    def column(self, name: str) -> np.ndarray:
        """The named column; all NaN where the run did not write it."""
        return self.columns.get(name, np.full(len(self), np.nan))

    def setting(self, dotted: str, default: Any = None) -> Any:
        """A setting from config.yaml by its dotted name, such as `training.n_epochs`."""
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def in_progress(self) -> bool:
        """No summary yet, or only that of an earlier session."""
        return self.summary is None or self.summary.get("env_steps", 0) < self.steps[-1]

    @property
    def kind(self) -> str:
        kind = self.info.get("kind")
        if isinstance(kind, str):
            return kind
        return "parallel" if self.num_workers > 1 else "sequential"

    @property
    def seed(self) -> int | None:
        return self.info.get("seed", self.setting("training.seed"))

    @property
    def env_id(self) -> str:
        return str(self.setting("env.id", "unknown"))

    @property
    def machine(self) -> dict[str, Any]:
        machine = self.info.get("machine")
        return machine if isinstance(machine, dict) else {}

    @property
    def num_workers(self) -> int:
        workers = self.column("num_workers")
        known = workers[np.isfinite(workers)]
        return max(1, int(known[-1])) if known.size else 1

    @property
    def num_cores(self) -> int | None:
        """Logical CPUs the run was allowed to use."""
        cores = self.machine.get("cores")
        return len(cores) if isinstance(cores, list) else cores

    @property
    def num_threads(self) -> int:
        """Threads of a sequential run; a worker always has one."""
        threads = (self.summary or {}).get("num_threads", self.setting("hardware.num_threads", 1))
        if threads == "auto":
            threads = self.num_cores
        return threads if isinstance(threads, int) else 1

    @property
    def steps(self) -> np.ndarray:
        return self.column("steps_global")

    @property
    def wall_time(self) -> np.ndarray:
        return self.column("wall_time")

    def iteration_steps(self) -> np.ndarray:
        return np.diff(self.steps, prepend=0.0)

    def iteration_seconds(self) -> np.ndarray:
        """End-to-end seconds of each iteration by the run's clock, checkpoints included."""
        clock = np.diff(self.wall_time, prepend=0.0)
        return np.where(np.isfinite(clock) & (clock > 0), clock, self.column("t_iter"))


def load_run(directory: str | Path) -> Run:
    """Load a run directory; a path to its metrics.jsonl will do as well."""
    path = Path(directory)
    if path.name == METRICS:
        return load_log(path)
    if not path.exists():
        raise InputError(
            f"no run directory {path}; train one first (`make train-parallel`) or check the name"
        )
    if not path.is_dir():
        raise InputError(f"{path} is a file; expected a run directory with {METRICS} in it")
    if not (path / CONFIG).exists():
        raise InputError(
            f"{path} has no {CONFIG}, so it is not a run directory; expected one as the trainers write it"
        )
    return _load(path, path / METRICS)


def load_log(log_file: str | Path) -> Run:
    """Load a metrics.jsonl on its own; the other files of its directory are taken where they are."""
    path = Path(log_file)
    if path.is_dir():
        return load_run(path)
    return _load(path.parent, path)


def find_runs(root: str | Path) -> list[Path]:
    """The run directories directly under `root`, the one written to last at the end."""
    base = Path(root)
    found = [path.parent for path in base.glob(f"*/{METRICS}")] if base.is_dir() else []
    return sorted(found, key=lambda path: ((path / METRICS).stat().st_mtime, path.name))


def newest_run(root: str | Path, *, kind: str) -> Path:
    for path in reversed(find_runs(root)):
        info = _read_object(path / RUN_INFO, []) if (path / RUN_INFO).exists() else {}
        if info.get("kind", path.name.rsplit("-", 1)[0]) == kind:
            return path
    raise InputError(
        f"no {kind} run under {root}/; make one with `make train-{kind}` or name it with --{kind} DIR"
    )


def _load(directory: Path, metrics_file: Path) -> Run:
    notes: list[str] = []
    rows = list(_read_lines(metrics_file, notes))
    if not rows:
        raise InputError(
            f"{metrics_file} has no finished iteration yet; wait for the first one and try again"
        )
    columns = _columns(rows)
    if "steps_global" not in columns:
        raise InputError(f"{metrics_file} has no column steps_global; expected the metrics of a training run")
    summary = _read_object(directory / SUMMARY, notes) if (directory / SUMMARY).exists() else None
    notes += _state_notes(directory, summary, float(columns["steps_global"][-1]))
    if not (directory / RUN_INFO).exists():
        notes.append(f"{directory} has no {RUN_INFO}: its machine and version are not known")
    return Run(
        path=directory,
        columns=columns,
        policy_sha256=tuple(row.get("policy_sha256") for row in rows),
        config=_read_config(directory / CONFIG),
        info=_read_object(directory / RUN_INFO, notes) if (directory / RUN_INFO).exists() else {},
        summary=summary,
        episodes=_read_episodes(directory / EPISODES, notes),
        notes=tuple(notes),
    )


def _state_notes(directory: Path, summary: dict[str, Any] | None, steps: float) -> list[str]:
    if not (directory / CONFIG).exists():
        return []
    if summary is None or summary.get("env_steps", 0) < steps:
        return [f"{directory} is still in progress, or was killed: what it wrote so far is used"]
    if summary.get("exit_code", 0):
        return [f"{directory} ended early: {summary.get('stop_reason')}"]
    return []


def _read_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InputError(f"no {path}; expected a run directory or the {METRICS} of one") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; expected a file of JSON lines") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines):
                notes.append(f"{path}: the last line is torn and was left out")
                return
            raise InputError(f"{path}, line {number} is not JSON; expected one object per line") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number} is not an object; expected one object per line")
        yield row


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    names = {name for row in rows for name, value in row.items() if _is_number(value)}
    return {
        name: np.array([float(row[name]) if _is_number(row.get(name)) else np.nan for row in rows])
        for name in sorted(names)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_episodes(path: Path, notes: list[str]) -> Episodes | None:
    if not path.exists():
        return None
    columns = _columns(list(_read_lines(path, notes)))
    if "return" not in columns or "iteration" not in columns:
        return None
    missing = np.full(len(columns["return"]), np.nan)
    return Episodes(
        iteration=columns["iteration"],
        step=columns.get("step", missing),
        returns=columns["return"],
        length=columns.get("length", missing),
    )


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError:
        notes.append(f"{path} is not JSON and was left out")
        return {}
    return value if isinstance(value, dict) else {}


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not YAML ({str(error).splitlines()[0]}); expected the settings of a run"
        ) from None
    return value if isinstance(value, dict) else {}
