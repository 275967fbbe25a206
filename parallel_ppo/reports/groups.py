"""Runs that belong together: the seeds of one setting under one label."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel_ppo.reports.procgen_scores import game_name
from parallel_ppo.reports.runs import Run, one_line

STOP_CONDITIONS = ("total_timesteps", "duration")


@dataclass(frozen=True)
class Group:
    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]


def learning_settings(run: Run) -> dict[str, Any]:
    """What decides the learning, by dotted name, without the seed and the stop conditions."""
    ignored = {"seed", *STOP_CONDITIONS}
    if {run.setting(f"training.{name}_schedule", "constant") for name in ("learning_rate", "clip_range")} == {
        "constant"
    }:
        ignored |= {"schedule_by", "schedule_steps", "schedule_hours"}
    return {"training.algorithm": "ppo"} | {
        f"{section}.{key}": value
        for section in ("env", "training")
        for key, value in (run.setting(section) or {}).items()
        if key not in ignored
    }


def algorithm(run: Run) -> str:
    """As a label names it; a lag is part of it."""
    name, lag = run.setting("training.algorithm", "ppo"), run.setting("training.lag", 0)
    return one_line(f"{name}, lag {lag}" if lag else str(name))


def group_seeds(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ only in their seed become one group; a repeated seed stays on its own."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {**learning_settings(run), "kind": run.kind, "workers": run.num_workers}
        key = json.dumps(settings, sort_keys=True, default=str) if run.config else str(run.path)
        while run.seed in [other.seed for other in groups.get(key, [])]:
            key += "'"
        groups.setdefault(key, []).append(run)
    return [Group(_label(members), tuple(members)) for members in groups.values()]


def short_env(env_id: str) -> str:
    return game_name(env_id) or env_id


def _label(runs: Sequence[Run]) -> str:
    name = one_line(runs[0].path.resolve().name)
    return name if len(runs) == 1 else f"{name} (+{len(runs) - 1} more seeds)"
