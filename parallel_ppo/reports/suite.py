"""Results of several games, settings and seeds: what to run, what was reached, and the published values
beside it.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.exits import InputError
from parallel_ppo.reports import statistics
from parallel_ppo.reports.curves import final_returns, returns_near
from parallel_ppo.reports.procgen_scores import (
    WINDOW,
    Published,
    game_name,
    normalised_score,
    published_curve,
)
from parallel_ppo.reports.runs import MAX_OBJECT_BYTES, METRICS, Run, load_run, read_object
from parallel_ppo.reports.statistics import Estimate
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically

MANIFEST = "suite.json"
EVALUATION = "suite_evaluation.json"  # users write evaluation.json, with settings of their choice
EVALUATION_SEED = 0
MAX_EPISODE_STEPS = 100_000
LEVELS = ("train", "test")
PROFILE_AT = np.linspace(0, 1, 51)


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
    """What a suite consists of; written once, read again on resume. `finished` and `failed` grow."""

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
class GameScores:
    """Normalised scores of one game with one setting, on one kind of levels; statistics over its runs."""

    runs: list[float]  # a score for each seed
    iqm: Estimate
    median: Estimate
    mean: Estimate


@dataclass(frozen=True)
class GameResult:
    """One game with one setting. Keys are kinds of levels, `train` and `test`; their values are from
    evaluations.
    """

    game: str
    setting: str
    seeds: list[int | None]
    steps: int
    distribution_mode: str
    num_levels: int
    final_return: Estimate  # of the last training episodes
    returns: dict[str, Estimate]
    gap: Estimate
    normalised: dict[str, GameScores]
    equal_steps: list[EqualSteps]
    published: list[Published]
    fps: float


@dataclass(frozen=True)
class Aggregate:
    """Normalised scores of all games with one setting, on one kind of levels."""

    setting: str
    levels: str
    num_games: int
    num_runs: int
    num_equal: int  # games whose runs all have one score: they add nothing to the width of the intervals
    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate
    profile: dict[str, list[float]]  # value, low and high at PROFILE_AT


@dataclass(frozen=True)
class Improvement:
    """How probable it is that a run with one setting is better than one with the other."""

    setting: str
    over: str
    levels: str
    num_games: int
    probability: Estimate


@dataclass(frozen=True)
class SuiteResult:
    games: list[GameResult]
    aggregates: list[Aggregate]
    improvements: list[Improvement]
    missing: list[str]
    failed: dict[str, str]
    machine: str
    commits: list[str]
    policies: list[Any]
    rollouts: list[str]  # environments x steps
    epochs: list[Any]
    settings: dict[str, str]  # the trainer's flags of each setting, with those that all have
    evaluation_episodes: int


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
    )


def evaluated_returns(plan: Plan, run: Run) -> dict[str, float]:
    """The mean return on each kind of levels, of the policy that the run ended with; empty if the run has
    not been evaluated.
    """
    if not is_evaluated(plan, run):
        return {}
    levels = (read_object(run.path / EVALUATION, []) or {})["levels"]
    found = {}
    for part in evaluation_levels(run):
        try:
            found[part] = float(levels[part]["return"]["mean"]["value"])
        except (KeyError, TypeError, ValueError):
            continue
    return found


def summarise(plan: Plan, runs: Runs) -> SuiteResult:
    games = [summarise_game(plan, *key, members) for key, members in runs.items()]
    every = [run for members in runs.values() for run in members]
    first = every[0] if every else None
    return SuiteResult(
        games=games,
        aggregates=[
            aggregate(setting, part, scores)
            for part in LEVELS
            for setting in plan.settings
            if (scores := scores_of(games, setting, part))
        ],
        improvements=[
            found
            for part in LEVELS
            for other, setting in itertools.combinations(plan.settings, 2)
            if (found := improvement(games, setting, other, part))
        ],
        missing=[name for name in plan.names() if name not in plan.finished and name not in plan.failed],
        failed=plan.failed,
        machine=f"{first.num_cores} cores, {first.machine.get('cpu_model')}" if first else "unknown",
        commits=_different(str(run.info.get("git_commit") or "unknown")[:7] for run in every),
        policies=_different(run.setting("training.policy") for run in every),
        rollouts=_different(
            f"{run.setting('env.num_envs')} x {run.setting('training.n_steps')}" for run in every
        ),
        epochs=_different(run.setting("training.n_epochs") for run in every),
        settings={name: shlex.join([*plan.arguments, *own]) for name, own in plan.settings.items()},
        evaluation_episodes=plan.evaluation_episodes,
    )


def _different(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def scores_of(games: Sequence[GameResult], setting: str, part: str) -> dict[str, np.ndarray]:
    return {
        game.game: np.array(game.normalised[part].runs)
        for game in games
        if game.setting == setting and part in game.normalised
    }


def aggregate(setting: str, part: str, scores: dict[str, np.ndarray]) -> Aggregate:
    values = list(scores.values())
    profile = statistics.stratified(partial(statistics.profile, at=PROFILE_AT), values)
    return Aggregate(
        setting=setting,
        levels=part,
        num_games=len(values),
        num_runs=sum(map(len, values)),
        num_equal=sum(len(game) > 1 and bool(game.min() == game.max()) for game in values),
        iqm=statistics.stratified_bootstrap(statistics.iqm_score, values),
        median=statistics.stratified_bootstrap(statistics.median_score, values),
        mean=statistics.stratified_bootstrap(statistics.mean_score, values),
        optimality_gap=statistics.stratified_bootstrap(statistics.optimality_gap, values),
        profile=dict(zip(("value", "low", "high"), (each.tolist() for each in profile), strict=True)),
    )


def improvement(games: Sequence[GameResult], setting: str, over: str, part: str) -> Improvement | None:
    """Of the games that both have."""
    ours, others = scores_of(games, setting, part), scores_of(games, over, part)
    common = [game for game in ours if game in others]
    if not common:
        return None
    pair = [ours[game] for game in common], [others[game] for game in common]
    probability = statistics.stratified_bootstrap(statistics.probability_of_improvement, *pair)
    return Improvement(setting, over, part, len(common), probability)


def summarise_game(plan: Plan, game: str, setting: str, runs: Sequence[Run]) -> GameResult:
    first = runs[0]
    mode = str(first.setting("env.distribution_mode", "easy"))
    levels = int(first.setting("env.num_levels", 0) or 0)
    evaluated = [evaluated_returns(plan, run) for run in runs]
    returns = {part: [each[part] for each in evaluated if part in each] for part in LEVELS}
    gaps = [each["train"] - each["test"] for each in evaluated if len(each) == 2]
    scores = {
        part: [
            score
            for mean in means
            if (score := normalised_score(first.env_id, mean, distribution_mode=mode)) is not None
        ]
        for part, means in returns.items()
    }
    published = published_curve(first.env_id, distribution_mode=mode, num_levels=levels)
    return GameResult(
        game=game,
        setting=setting,
        seeds=[run.seed for run in runs],
        steps=int(min(run.steps[-1] for run in runs)),
        distribution_mode=mode,
        num_levels=levels,
        final_return=statistics.bootstrap(
            [float(final.mean()) for run in runs if len(final := final_returns(run))]
        ),
        returns={part: statistics.bootstrap(means) for part, means in returns.items() if means},
        gap=statistics.bootstrap(gaps),
        normalised={part: game_scores(found) for part, found in scores.items() if found},
        equal_steps=at_equal_steps(runs, published),
        published=published,
        fps=float(np.nanmean([run.steps[-1] / run.wall_time[-1] for run in runs])),
    )


def game_scores(runs: list[float]) -> GameScores:
    iqm, median, mean = (
        statistics.bootstrap(runs, statistic) for statistic in (statistics.iqm, np.median, np.mean)
    )
    return GameScores(runs, iqm, median, mean)


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
