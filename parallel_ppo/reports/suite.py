"""Results of several games and seeds: what to run, what was reached, and the published values beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_ppo.exits import InputError
from parallel_ppo.reports import statistics
from parallel_ppo.reports.curves import final_returns, returns_near
from parallel_ppo.reports.procgen_scores import WINDOW, Published, normalised_score, published_curve
from parallel_ppo.reports.runs import MAX_OBJECT_BYTES, METRICS, Run, load_run
from parallel_ppo.reports.statistics import Estimate
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically

MANIFEST = "suite.json"


@dataclass(frozen=True)
class Plan:
    """What a suite consists of; written once, read again on resume. `finished` and `failed` grow."""

    games: list[str]
    seeds: list[int]
    total_timesteps: int | None
    duration: float | None
    arguments: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def pairs(self) -> list[tuple[str, int]]:
        """Seed by seed, so that a suite stopped early has every game."""
        return [(game, seed) for seed in self.seeds for game in self.games]

    def names(self) -> list[str]:
        return [run_name(game, seed) for game, seed in self.pairs()]


def run_name(game: str, seed: int) -> str:
    return f"{game.replace(':', '_').replace('/', '_')}-seed{seed}"


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
        return Plan(**json.loads(read_regular(path, MAX_OBJECT_BYTES)))
    except (Damaged, ValueError, TypeError, RecursionError):
        raise InputError(
            f"{path} cannot be read as a suite; start a new one with another --output-dir"
        ) from None


@dataclass(frozen=True)
class EqualSteps:
    """Our mean return around a published position, and the published one."""

    steps: int
    ours: float
    published: float
    levels: str


@dataclass(frozen=True)
class GameResult:
    game: str
    seeds: list[int | None]
    steps: int
    distribution_mode: str
    num_levels: int
    final_return: Estimate
    normalised: list[float]
    equal_steps: list[EqualSteps]
    published: list[Published]
    fps: float


@dataclass(frozen=True)
class SuiteResult:
    games: list[GameResult]
    normalised_mean: Estimate
    normalised_iqm: Estimate
    missing: list[str]
    failed: dict[str, str]
    machine: str
    policies: list[Any]
    epochs: list[Any]


def load_suite_runs(plan: Plan, directory: Path) -> dict[str, list[Run]]:
    """The runs of each game that have at least one iteration."""
    runs: dict[str, list[Run]] = {}
    for game in plan.games:
        for seed in plan.seeds:
            path = directory / run_name(game, seed)
            if (path / METRICS).exists() and (path / METRICS).stat().st_size:
                runs.setdefault(game, []).append(load_run(path))
    return runs


def summarise(plan: Plan, runs: dict[str, list[Run]]) -> SuiteResult:
    games = [summarise_game(game, members) for game, members in runs.items()]
    scores = [game.normalised for game in games if game.normalised]
    first = next((members[0] for members in runs.values()), None)
    return SuiteResult(
        games=games,
        normalised_mean=statistics.stratified_bootstrap(scores, np.mean),
        normalised_iqm=statistics.stratified_bootstrap(scores, statistics.iqm),
        missing=[name for name in plan.names() if name not in plan.finished and name not in plan.failed],
        failed=plan.failed,
        machine=str(first.machine.get("cpu_model", "unknown")) if first else "unknown",
        policies=_values(runs, "training.policy"),
        epochs=_values(runs, "training.n_epochs"),
    )


def _values(runs: dict[str, list[Run]], setting: str) -> list[Any]:
    """The different values of a setting among all runs, in order of appearance."""
    return list(dict.fromkeys(run.setting(setting) for members in runs.values() for run in members))


def summarise_game(game: str, runs: Sequence[Run]) -> GameResult:
    first = runs[0]
    mode = str(first.setting("env.distribution_mode", "easy"))
    levels = int(first.setting("env.num_levels", 0) or 0)
    means = [float(returns.mean()) for run in runs if len(returns := final_returns(run))]
    scores = [normalised_score(first.env_id, mean, distribution_mode=mode) for mean in means]
    published = published_curve(first.env_id, distribution_mode=mode, num_levels=levels)
    return GameResult(
        game=game,
        seeds=[run.seed for run in runs],
        steps=int(min(run.steps[-1] for run in runs)),
        distribution_mode=mode,
        num_levels=levels,
        final_return=statistics.bootstrap(means),
        normalised=[score for score in scores if score is not None],
        equal_steps=at_equal_steps(runs, published),
        published=published,
        fps=float(np.nanmean([run.steps[-1] / run.wall_time[-1] for run in runs])),
    )


def at_equal_steps(runs: Sequence[Run], published: Sequence[Published]) -> list[EqualSteps]:
    """Only positions that every run has reached; the same window as the published figures."""
    rows = []
    for point in published:
        if min(run.steps[-1] for run in runs) < point.steps:
            continue
        near = [returns_near(run, point.steps, within=WINDOW) for run in runs]
        means = [float(returns.mean()) for returns in near if len(returns)]
        if means:
            rows.append(EqualSteps(point.steps, float(np.mean(means)), point.value, point.levels))
    return rows


def as_json(result: SuiteResult) -> dict[str, Any]:
    return asdict(result)
