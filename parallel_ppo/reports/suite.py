"""A suite of games, settings and seeds: its plan, its runs and their evaluations."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line
from parallel_ppo.reports.curves import final_returns
from parallel_ppo.reports.procgen_scores import game_name, normalized_score
from parallel_ppo.reports.runs import LARGEST, MAX_OBJECT_BYTES, METRICS, Run, load_run, read_object
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically

MANIFEST = "suite.json"
EVALUATION = "suite_evaluation.json"  # users write evaluation.json, with settings of their choice
EVALUATION_SEED = 0
MAX_EPISODE_STEPS = 100_000
LEVELS = ("train", "test")
WITH_SEEN = "test_with_seen"  # the older protocol: also levels whose first frame is that of a training level
MAX_RUNS = 100_000


class Job(NamedTuple):
    """One run of a suite."""

    game: str
    setting: str
    seed: int

    @property
    def name(self) -> str:
        words = (self.game, self.setting, f"seed{self.seed}")
        return "-".join(word for word in words if word).replace(":", "_").replace("/", "_")


@dataclass(frozen=True)
class Plan:
    """Written once, read again on resume. `finished` and `failed` grow."""

    games: list[str]
    seeds: list[int]
    total_timesteps: int | None
    duration: float | None
    arguments: list[str] = field(default_factory=list)
    settings: dict[str, list[str]] = field(default_factory=lambda: {"": []})  # further arguments of each
    evaluation_episodes: int = 100  # on each kind of levels; 0: no evaluation
    at_once: int | None = None  # runs; None: as many as leave no core idle
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """Seed by seed, so that a suite stopped early has every game and setting."""
        return [
            Job(game, setting, seed)
            for seed in self.seeds
            for game in self.games
            for setting in self.settings
        ]

    def names(self) -> list[str]:
        return [job.name for job in self.jobs()]


def save_plan(plan: Plan, directory: Path) -> None:
    """Atomically: a suite that is killed can always be resumed."""
    write_atomically(directory / MANIFEST, (json.dumps(asdict(plan), indent=2) + "\n").encode())


def load_plan(directory: Path) -> Plan:
    path = directory / MANIFEST
    if not path.exists():
        raise InputError(
            f"no {path}; expected the directory of a suite, as `tools/suite.py --output-dir` made it"
        )
    try:
        plan = TypeAdapter(Plan).validate_json(read_regular(path, MAX_OBJECT_BYTES), strict=True)
        if not has_plain_names(plan):
            raise Damaged(f"{path} has names that are no text")
    except (Damaged, ValidationError):
        raise InputError(
            f"{path} cannot be read as a suite; start a new one with another --output-dir"
        ) from None
    if len(plan.games) * len(plan.seeds) * len(plan.settings) > MAX_RUNS:
        raise InputError(f"{path} has more than {MAX_RUNS:,} runs; start a new suite with fewer")
    return plan


def has_plain_names(plan: Plan) -> bool:
    """False if a name has line breaks, escape sequences, or more than a line."""
    return all(one_line(name) == name for name in (*plan.games, *plan.settings, *plan.finished, *plan.failed))


Runs = dict[tuple[str, str], list[Run]]  # by game and setting


def load_suite_runs(plan: Plan, directory: Path) -> Runs:
    """The runs that have at least one iteration."""
    runs: Runs = {}
    for game in plan.games:
        for setting in plan.settings:
            for seed in plan.seeds:
                path = directory / Job(game, setting, seed).name
                if (path / METRICS).exists() and (path / METRICS).stat().st_size:
                    runs.setdefault((game, setting), []).append(load_run(path))
    return runs


def evaluation_levels(run: Run) -> tuple[str, ...]:
    """Only Procgen with a bounded number of levels has levels that the run never saw."""
    has_unseen = game_name(run.env_id) is not None and bool(run.setting("env.num_levels", 0))
    return LEVELS if has_unseen else LEVELS[:1]


def is_evaluated(plan: Plan, run: Run) -> bool:
    """Whether the evaluation of `run` is of its last policy, with exactly the settings of the suite."""
    report = read_object(run.path / EVALUATION, []) or {}
    levels = report.get("levels")
    wanted = {
        "policy_sha256": run.policy_sha256[-1],
        "env_id": run.env_id,
        "seed": EVALUATION_SEED,
        "deterministic": False,
        "num_episodes": plan.evaluation_episodes,
        "max_steps": MAX_EPISODE_STEPS,
    }
    return (
        all(name in report and report[name] == value for name, value in wanted.items())
        and isinstance(levels, dict)
        and sorted(levels) == sorted(evaluation_levels(run))
        and ("test" in levels) == isinstance(report.get("first_frames"), dict)
    )


def evaluated_returns(plan: Plan, run: Run) -> dict[str, float]:
    """The mean return on each kind of levels, of the policy that the run ended with; empty if the run has
    not been evaluated.
    """
    if not is_evaluated(plan, run):
        return {}
    report = read_object(run.path / EVALUATION, []) or {}
    found = {}
    for part in (*evaluation_levels(run), WITH_SEEN):
        try:
            mean = (
                report["first_frames"]["return_with_seen"]
                if part == WITH_SEEN
                else report["levels"][part]["return"]["mean"]
            )
            found[part] = float(mean["value"])
        except (KeyError, TypeError, ValueError):
            continue
    return {part: value for part, value in found.items() if abs(value) < LARGEST}


def score_of(run: Run, mean_return: float) -> float | None:
    """Normalized; None for other environments than Procgen's games."""
    mode = run.word("env.distribution_mode", "easy")
    return normalized_score(run.env_id, mean_return, distribution_mode=mode)


def run_records(plan: Plan, runs: Runs) -> list[dict[str, Any]]:
    """For results.csv: one row per run."""
    rows = []
    for (game, setting), members in runs.items():
        for run in members:
            evaluated, final = evaluated_returns(plan, run), final_returns(run)
            values = {f"return_{part}_levels": evaluated.get(part) for part in (*LEVELS, WITH_SEEN)} | {
                f"score_{part}_levels": score_of(run, evaluated[part]) if part in evaluated else None
                for part in LEVELS
            }
            rows.append(
                {
                    "game": one_line(game),
                    "setting": setting,
                    "seed": run.seed,
                    "steps": int(run.steps[-1]),
                    "return_last_100": float(np.mean(final)) if len(final) else None,
                    **values,
                    "steps_per_second": float(run.steps[-1] / run.wall_time[-1]),
                    "policy_sha256": run.policy_sha256[-1],
                }
            )
    return rows
