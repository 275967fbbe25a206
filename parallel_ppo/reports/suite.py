"""A suite of games, settings and seeds: its plan, and the results of its runs."""

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
from pydantic import TypeAdapter, ValidationError

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
from parallel_ppo.reports.runs import LARGEST, MAX_OBJECT_BYTES, METRICS, Run, load_run, one_line, read_object
from parallel_ppo.reports.statistics import Estimate, SeedEstimate
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically

MANIFEST = "suite.json"
EVALUATION = "suite_evaluation.json"  # users write evaluation.json, with settings of their choice
EVALUATION_SEED = 0
MAX_EPISODE_STEPS = 100_000
LEVELS = ("train", "test")
PROFILE_POINTS = 51
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
    except (Damaged, ValidationError):
        raise InputError(
            f"{path} cannot be read as a suite; start a new one with another --output-dir"
        ) from None
    if len(plan.games) * len(plan.seeds) * len(plan.settings) > MAX_RUNS:
        raise InputError(f"{path} has more than {MAX_RUNS:,} runs; start a new suite with fewer")
    return plan


@dataclass(frozen=True)
class EqualSteps:
    """Our mean return around a published position, and the published one."""

    steps: int
    ours: float
    published: float
    levels: str


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
    final_return: SeedEstimate  # of the last training episodes
    returns: dict[str, SeedEstimate]
    gap: SeedEstimate
    scores: dict[str, list[float]]  # normalized, one for each run
    equal_steps: list[EqualSteps]
    published: list[Published]
    fps: float


@dataclass(frozen=True)
class Aggregate:
    """Normalized scores of all games with one setting, on one kind of levels."""

    setting: str
    levels: str
    num_games: int
    num_runs: int
    least_seeds: int  # of a game
    num_equal: int  # games whose runs all have one score: they add nothing to the width of the intervals
    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate
    profile: dict[str, list[float]]  # value, low and high at the scores `at`


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
    aggregates: list[Aggregate]  # on each kind of levels the best setting first
    improvements: list[Improvement]  # of better settings over worse ones
    missing: list[str]
    failed: dict[str, str]
    machine: str
    commits: list[str]
    policies: list[str]
    rollouts: list[str]  # environments x steps
    epochs: list[str]
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
    return {part: value for part, value in found.items() if abs(value) < LARGEST}


def summarise(plan: Plan, runs: Runs) -> SuiteResult:
    games = [summarise_game(plan, *key, members) for key, members in runs.items()]
    every = [run for members in runs.values() for run in members]
    aggregates, improvements = [], []
    for part in LEVELS:
        scores = {setting: scores_of(games, setting, part) for setting in plan.settings}
        ranked = [aggregate(setting, part, found) for setting, found in scores.items() if found]
        ranked.sort(key=lambda row: -row.iqm.value)
        aggregates += ranked
        improvements += [
            found
            for better, worse in itertools.combinations([row.setting for row in ranked], 2)
            if (found := improvement(scores, better, worse, part))
        ]
    return SuiteResult(
        games=games,
        aggregates=aggregates,
        improvements=improvements,
        missing=[name for name in plan.names() if name not in plan.finished and name not in plan.failed],
        failed={one_line(name): one_line(why) for name, why in plan.failed.items()},
        machine=f"{every[0].num_cores} cores, {every[0].cpu_model}" if every else "unknown",
        commits=_different(one_line(str(run.info.get("git_commit") or "unknown"))[:7] for run in every),
        policies=_different(run.word("training.policy") for run in every),
        rollouts=_different(f"{run.word('env.num_envs')} x {run.word('training.n_steps')}" for run in every),
        epochs=_different(run.word("training.n_epochs") for run in every),
        settings={name: shlex.join([*plan.arguments, *own]) for name, own in plan.settings.items()},
        evaluation_episodes=plan.evaluation_episodes,
    )


def _different(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def scores_of(games: Sequence[GameResult], setting: str, part: str) -> dict[str, np.ndarray]:
    return {
        game.game: np.array(game.scores[part])
        for game in games
        if game.setting == setting and part in game.scores
    }


def aggregate(setting: str, part: str, scores: dict[str, np.ndarray]) -> Aggregate:
    values = list(scores.values())
    lowest, highest = (float(edge(np.concatenate(values))) for edge in (np.min, np.max))
    at = np.linspace(min(0.0, lowest), max(1.0, highest), PROFILE_POINTS)
    profile = statistics.stratified(partial(statistics.profile, at=at), values)
    return Aggregate(
        setting=setting,
        levels=part,
        num_games=len(values),
        num_runs=sum(map(len, values)),
        least_seeds=min(map(len, values)),
        num_equal=sum(len(game) > 1 and bool(game.min() == game.max()) for game in values),
        iqm=statistics.stratified_bootstrap(statistics.iqm_score, values),
        median=statistics.stratified_bootstrap(statistics.median_score, values),
        mean=statistics.stratified_bootstrap(statistics.mean_score, values),
        optimality_gap=statistics.stratified_bootstrap(statistics.optimality_gap, values),
        profile=dict(
            zip(("at", "value", "low", "high"), (row.tolist() for row in (at, *profile)), strict=True)
        ),
    )


def improvement(
    scores: dict[str, dict[str, np.ndarray]], setting: str, over: str, part: str
) -> Improvement | None:
    """Of the games that both have."""
    common = [game for game in scores[setting] if game in scores[over]]
    if not common:
        return None
    pair = [[scores[name][game] for game in common] for name in (setting, over)]
    probability = statistics.stratified_bootstrap(statistics.probability_of_improvement, *pair)
    return Improvement(setting, over, part, len(common), probability)


def summarise_game(plan: Plan, game: str, setting: str, runs: Sequence[Run]) -> GameResult:
    first = runs[0]
    mode = first.word("env.distribution_mode", "easy")
    levels = int(first.number("env.num_levels", 0))
    evaluated = [evaluated_returns(plan, run) for run in runs]
    scores = {
        part: [score_of(run, each[part]) for run, each in zip(runs, evaluated, strict=True) if part in each]
        for part in LEVELS
    }
    returns = {part: [each[part] for each in evaluated if part in each] for part in LEVELS}
    published = published_curve(first.env_id, distribution_mode=mode, num_levels=levels)
    finals = [final for run in runs if len(final := final_returns(run))]
    return GameResult(
        game=one_line(game),
        setting=setting,
        seeds=[run.seed for run in runs],
        steps=int(min(run.steps[-1] for run in runs)),
        distribution_mode=mode,
        num_levels=levels,
        final_return=statistics.over_seeds([float(final.mean()) for final in finals]),
        returns={part: statistics.over_seeds(means) for part, means in returns.items() if means},
        gap=statistics.over_seeds([each["train"] - each["test"] for each in evaluated if len(each) == 2]),
        scores={
            part: known for part, found in scores.items() if (known := [x for x in found if x is not None])
        },
        equal_steps=at_equal_steps(runs, published),
        published=published,
        fps=float(np.mean([run.steps[-1] / run.wall_time[-1] for run in runs])),
    )


def score_of(run: Run, mean_return: float) -> float | None:
    """Normalized; None for other environments than Procgen's games."""
    mode = run.word("env.distribution_mode", "easy")
    return normalised_score(run.env_id, mean_return, distribution_mode=mode)


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


def run_records(plan: Plan, runs: Runs) -> list[dict[str, Any]]:
    """For results.csv: one row per run."""
    rows = []
    for (game, setting), members in runs.items():
        for run in members:
            evaluated, final = evaluated_returns(plan, run), final_returns(run)
            values = {f"return_{part}_levels": evaluated.get(part) for part in LEVELS} | {
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
