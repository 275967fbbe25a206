"""Copies of one real run, with timings, settings and learning that a test knows exactly.

The columns and keys are those of the trainers: a change of one that does not exist is an error.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import yaml

REAL_RUN = "PARALLEL_PPO_REAL_RUN"  # names the folder of the run that the fixture `real_run` made


def copy_run(
    path: Path,
    *,
    kind: str = "parallel",
    iterations: int = 12,
    workers: int = 2,
    threads: int = 1,
    seed: int = 1,
    steps_each: int = 2048,
    rollout: float = 2.0,
    learn: float = 6.0,
    coordinator: float = 0.4,
    exchange: float = 0.0,
    noise: float = 0.02,
    learning: str = "same",
    finished: bool = True,
    machine: str = "Test CPU",
    commit: str = "abc123",
    columns: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """`rollout` and `learn` are the seconds of one worker; `coordinator` is the part of `learn` that never
    shrinks. `settings`: `training__gamma=0.9` sets training.gamma; `columns` adds columns or sets them.
    """
    path.mkdir(parents=True)
    source = copy.deepcopy(_source(os.environ[REAL_RUN]))
    rows = source["metrics"][:iterations]
    assert len(rows) == iterations, "the real run is too short"
    generator = np.random.default_rng(seed * 1000 + workers)
    scale, clock = steps_each / rows[0]["steps_global"], 0.0
    for row in rows:
        slowness = 1 + noise * generator.standard_normal()
        t_rollout, alone = rollout / workers * slowness, coordinator * slowness
        t_learn = ((learn - coordinator) / workers + coordinator) * slowness + exchange
        t_iter = t_rollout + t_learn
        clock += t_iter
        change(row, {
            "steps_global": row["steps_global"] * scale, "num_workers": workers, "wall_time": clock,
            "fps": steps_each / t_iter, "rollout_fps": steps_each / t_rollout,
            "t_iter": t_iter, "t_rollout": t_rollout, "t_learn": t_learn, "t_sync": exchange, "t_coordinator": alone,
            "share_collect": t_rollout / t_iter, "share_gradients": (t_learn - exchange - alone) / t_iter,
            "share_reduce": 0.0, "share_exchange": exchange / t_iter, "share_coordinator": alone / t_iter,
            "idle_share": 0.05, "idle_collect": 0.05, "idle_update": 0.05,
            "cpu_percent": 95.0 * workers, "cpu_wait_percent": 0.0, "rss_mb": 300.0 + 200 * workers,
            "policy_sha256": digest(row["policy_sha256"], learning, seed),
        })  # fmt: skip
        row |= columns or {}
    write_rows(path / "metrics.jsonl", rows)
    episodes = [row for row in source["episodes"] if row["iteration"] <= iterations]
    for row in episodes:
        change(row, {"step": row["step"] * scale, "return": row["return"] + seed})
    write_rows(path / "episodes.jsonl", episodes)

    config, info, summary = (source[name] for name in ("config", "run", "summary"))
    for name, value in {"training__seed": seed, **settings}.items():
        section, _, key = name.partition("__")
        change(config[section], {key: value})
    (path / "config.yaml").write_text(json.dumps(config))  # which is YAML
    change(info, {"kind": kind, "seed": seed, "git_commit": commit})
    change(info["machine"], {"cpu_model": machine, "cores": 4})
    (path / "run.json").write_text(json.dumps(info))
    if finished:
        change(summary, {
            "env_steps": rows[-1]["steps_global"], "wall_time": clock, "policy_sha256": rows[-1]["policy_sha256"],
            "num_workers": workers, "num_threads": threads, "peak_rss_mb": 320.0 + 200 * workers,
        })  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@functools.cache
def _source(path: str) -> dict[str, Any]:
    run = Path(path)
    found: dict[str, Any] = {name: read_rows(run / f"{name}.jsonl") for name in ("metrics", "episodes")}
    found |= {name: json.loads((run / f"{name}.json").read_text()) for name in ("run", "summary")}
    return found | {"config": yaml.safe_load((run / "config.yaml").read_text())}


def digest(real: str, learning: str, seed: int) -> str:
    return hashlib.sha256(f"{real} {learning} {seed}".encode()).hexdigest()


def change(where: dict[str, Any], values: dict[str, Any]) -> None:
    """A name that the trainers do not write is a mistake, or was renamed."""
    unknown = values.keys() - where.keys()
    assert not unknown, f"the trainers do not write {sorted(unknown)}"
    where |= values


def edit_rows(path: Path, **columns: Any) -> None:
    """Sets columns of a copied run in every iteration."""
    rows = read_rows(path / "metrics.jsonl")
    for row in rows:
        change(row, columns)
    write_rows(path / "metrics.jsonl", rows)


def edit_config(path: Path, **settings: Any) -> None:
    """`training__gamma=0.9` sets training.gamma of a copied run."""
    config = json.loads((path / "config.yaml").read_text())
    for name, value in settings.items():
        section, _, key = name.partition("__")
        change(config[section], {key: value})
    (path / "config.yaml").write_text(json.dumps(config))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_evaluation(
    path: Path, returns: dict[str, float], *, file: str | Path = "", **settings: Any
) -> None:
    """The parts of an evaluation that a suite reads."""
    config = json.loads((path / "config.yaml").read_text())
    report = {
        "policy_sha256": json.loads((path / "summary.json").read_text())["policy_sha256"],
        "env_id": config["env"]["id"],
        "seed": 0,
        "deterministic": False,
        "num_episodes": 100,
        "max_steps": 100_000,
        "levels": {part: {"return": {"mean": {"value": value}}} for part, value in returns.items()},
        "first_frames": {"return_with_seen": {"value": returns["test"] + 0.5}} if "test" in returns else None,
    }
    (Path(file) if file else path / "suite_evaluation.json").write_text(json.dumps(report | settings))
