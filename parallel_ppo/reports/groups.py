"""Runs that belong together: the seeds of one setting under one label."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel_ppo.printable import one_line
from parallel_ppo.reports.procgen_scores import game_name
from parallel_ppo.reports.runs import Run
from parallel_ppo.settings.learning import learning_values
from parallel_ppo.settings.schema import SCHEDULE_ENDS


@dataclass(frozen=True)
class Group:
    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def num_cores(self) -> int:
        """Workers of a parallel run, threads of a sequential one."""
        return self.first.num_threads if self.first.kind == "sequential" else self.first.num_workers


def learning_settings(run: Run) -> dict[str, Any]:
    """The settings that decide what is learned, by dotted key, without the random seed."""
    values = learning_values(run.config)
    ignored = ["training.seed"]
    schedules = (values[f"training.{name}_schedule"] for name in ("learning_rate", "clip_range"))
    if all(schedule == "constant" for schedule in schedules):
        ignored += ["training.schedule_by", *SCHEDULE_ENDS]
    return {key: value for key, value in values.items() if key not in ignored}


def group_seeds(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ only in their seed become one group; a repeated seed gets its own group."""
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
