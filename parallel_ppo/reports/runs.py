"""Reading a run directory, finished or not.

A run in progress is read as far as it is written; a torn last line is left out and noted. A run without a
finished iteration is an `InputError`. Run directories are untrusted input: sizes are limited, values of a
wrong type are ignored, and every text becomes one printable line.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_ppo.arguments import named_run
from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line
from parallel_ppo.reports.procgen_scores import game_name
from parallel_ppo.settings.yaml_files import read_yaml
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.storage.json_lines import read_lines

METRICS = "metrics.jsonl"
EPISODES = "episodes.jsonl"
CONFIG = "config.yaml"
RUN_INFO = "run.json"
SUMMARY = "summary.json"
MAX_CELLS = 100_000_000  # columns x iterations
MAX_OBJECT_BYTES = 16 << 20
LARGEST = 1e30  # larger numbers are no measurement, and overflow in pictures


@dataclass(frozen=True)
class Episodes:
    """The finished episodes in the order of the file; one entry each."""

    iteration: np.ndarray
    step: np.ndarray
    returns: np.ndarray


@dataclass(frozen=True)
class Run:
    path: Path
    columns: dict[str, np.ndarray]  # one float per iteration; NaN if the run wrote none
    policy_sha256: tuple[str | None, ...]
    config: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    episodes: Episodes | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.policy_sha256)

    @property
    def name(self) -> str:
        """Its directory as printable text."""
        return one_line(str(self.path))

    def column(self, name: str) -> np.ndarray:
        """The named column; all NaN if the run did not write it."""
        return self.columns.get(name, np.full(len(self), np.nan))

    def setting(self, dotted: str, default: Any = None) -> Any:
        """A setting from config.yaml by its dotted name, such as `training.n_epochs`."""
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def number(self, dotted: str, default: float = float("nan")) -> float:
        """A setting that should be a number; `default` if it is none."""
        value = self.setting(dotted)
        return value if _is_number(value) and abs(value) < LARGEST else default

    def word(self, dotted: str, default: str = "unknown") -> str:
        value = self.setting(dotted)
        return default if value is None else one_line(str(value))

    @property
    def in_progress(self) -> bool:
        return _is_unfinished(self.summary, float(self.steps[-1]))

    @property
    def kind(self) -> str:
        kind = self.info.get("kind")
        if kind in ("sequential", "parallel"):
            return str(kind)
        return "parallel" if self.num_workers > 1 else "sequential"

    @property
    def seed(self) -> int | None:
        seed = self.info.get("seed", self.setting("training.seed"))
        return seed if isinstance(seed, int) else None

    @property
    def env_id(self) -> str:
        return self.word("env.id")

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
        return len(cores) if isinstance(cores, list) else cores if isinstance(cores, int) else None

    @property
    def cpu_model(self) -> str:
        return one_line(str(self.machine.get("cpu_model") or "unknown CPU"))

    @property
    def procgen_build(self) -> str:
        """The package and its version, of the last session; empty for other environments."""
        sessions = self.info.get("sessions")
        last = sessions[-1] if isinstance(sessions, list) and sessions else None
        known = last.get("arithmetic") if isinstance(last, dict) else None
        if not isinstance(known, dict) or game_name(self.env_id) is None:
            return ""
        builds = [f"{name} {known[name]}" for name in ("procgen", "procgen-mirror") if name in known]
        return one_line(", ".join(builds))

    @property
    def num_threads(self) -> int:
        """Threads of a sequential run; a worker always has one."""
        threads = (self.summary or {}).get("num_threads", self.setting("hardware.num_threads", 1))
        if threads == "auto":
            threads = self.num_cores
        return max(1, threads) if isinstance(threads, int) else 1

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
    """Load a run directory, by its path or its name in runs/, or a metrics.jsonl with the files beside it."""
    path = named_run(str(directory))
    if path.suffix == ".jsonl" and not path.is_dir():
        return _load(path.parent, path)
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


def find_runs(root: str | Path) -> list[Path]:
    """The run directories under `root`, also those in a folder there; the one written to last at the end."""
    found = []
    for pattern in ("*", "*/*"):
        for path in Path(root).glob(f"{pattern}/{METRICS}"):
            if path.is_file():
                found.append((path.stat().st_mtime, path.parent))
    return [path for _, path in sorted(found)]


def newest_run(root: str | Path, *, kind: str) -> Path:
    for path in reversed(find_runs(root)):
        info = read_object(path / RUN_INFO, [])
        if (info or {}).get("kind", path.name.rsplit("-", 1)[0]) == kind:
            return path
    raise InputError(
        f"no {kind} run under {root}/; make one with `make train-{kind}` or name it with --{kind} DIR"
    )


def _load(directory: Path, metrics_file: Path) -> Run:
    notes: list[str] = []
    name = one_line(str(directory))
    columns, hashes = _read_columns(metrics_file, notes)
    if not hashes:
        raise InputError(
            f"{metrics_file} has no finished iteration yet; wait for the first one and try again"
        )
    steps = columns.get("steps_global")
    if steps is None or not (np.isfinite(steps).all() and (np.diff(steps, prepend=0) > 0).all()):
        raise InputError(
            f"{metrics_file}: expected the metrics of a training run, with a column steps_global that grows"
        )
    info, summary = (read_object(directory / file, notes) for file in (RUN_INFO, SUMMARY))
    notes += _state_notes(directory, summary, float(steps[-1]))
    if info is None:
        notes.append(f"{name} has no {RUN_INFO}: its machine and version are not known")
    return Run(
        path=directory,
        columns=columns,
        policy_sha256=tuple(hashes),
        config=_read_config(directory / CONFIG),
        info=info or {},
        summary=summary,
        episodes=_read_episodes(directory / EPISODES, notes),
        notes=tuple(notes),
    )


def _state_notes(directory: Path, summary: dict[str, Any] | None, steps: float) -> list[str]:
    name = one_line(str(directory))
    if not (directory / CONFIG).exists():
        return []
    if _is_unfinished(summary, steps):
        return [f"{name} is still in progress, or was killed: what it wrote so far is used"]
    assert summary is not None
    if summary.get("exit_code", 0):
        return [f"{name} ended early: {one_line(str(summary.get('stop_reason')))}"]
    return []


def _is_unfinished(summary: dict[str, Any] | None, steps: float) -> bool:
    """No summary yet, or only that of an earlier session."""
    known = (summary or {}).get("env_steps")
    return not (isinstance(known, int | float) and known >= steps)


def _read_columns(path: Path, notes: list[str]) -> tuple[dict[str, np.ndarray], list[str | None]]:
    """Every number by its name, NaN in lines without it; and the hashes, one for each line."""
    columns: dict[str, array[float]] = {}
    hashes: list[str | None] = []
    for row in _read_rows(path, notes):
        for name, value in row.items():
            if isinstance(value, int | float):
                column = columns.setdefault(name, array("d"))
                column.extend([np.nan] * (len(hashes) - len(column)))
                column.append(_as_float(value))
        digest = row.get("policy_sha256")
        hashes.append(one_line(digest) if isinstance(digest, str) else None)
        if len(columns) * len(hashes) > MAX_CELLS:
            raise InputError(
                f"{path} has {len(columns):,} columns and over {len(hashes):,} lines, more than can be shown"
            )
    return {
        one_line(name): np.pad(np.array(column), (0, len(hashes) - len(column)), constant_values=np.nan)
        for name, column in sorted(columns.items())
    }, hashes


def _read_rows(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise InputError(f"no {path}; expected a run directory or the {METRICS} of one")
    for line in read_lines(path):
        if line.record is not None:
            yield line.record
        elif not line.is_whole:
            notes.append(f"{one_line(str(path))}: the last line is torn and was left out")
        elif line.data.strip():
            raise InputError(f"{path}, line {line.number} is not a JSON object; expected one object per line")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_float(value: int | float) -> float:
    return float(value) if abs(value) < LARGEST else float("nan")


def _read_episodes(path: Path, notes: list[str]) -> Episodes | None:
    if not path.exists():
        return None
    columns, lines = _read_columns(path, notes)
    missing = np.full(len(lines), np.nan)
    episodes = Episodes(*(columns.get(name, missing) for name in ("iteration", "step", "return")))
    if not (np.isfinite(episodes.iteration).all() and np.isfinite(episodes.returns).all()):
        notes.append(f"{one_line(str(path))}: has lines without iteration or return, and was left out")
        return None
    return episodes


def read_object(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """None if there is no such file."""
    if not path.exists():
        return None
    try:
        value = _lines_only(json.loads(read_regular(path, MAX_OBJECT_BYTES)))
    except (Damaged, ValueError, RecursionError):
        notes.append(f"{one_line(str(path))} is not JSON and was left out")
        return {}
    return value if isinstance(value, dict) else {}


def _read_config(path: Path) -> dict[str, Any]:
    return _lines_only(read_yaml(path)) if path.exists() else {}


def _lines_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {one_line(str(key)): _lines_only(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_lines_only(item) for item in value]
    if isinstance(value, int) and value.bit_length() > 64:
        value = hex(value)
    return one_line(value) if isinstance(value, str) else value
