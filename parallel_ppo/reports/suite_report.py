"""The results of a suite as a document: the best setting first."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from parallel_ppo.printable import count, one_line
from parallel_ppo.reports import mujoco_scores, statistics, theme
from parallel_ppo.reports.curves import (
    RETURN_WINDOW,
    final_returns,
    returns_near,
)
from parallel_ppo.reports.document import (
    Card,
    Document,
    Row,
    Table,
    as_html,
    as_json,
    to_csv,
    write,
)
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.plots import LINES_NOTE, OVER_STEPS, draw_returns
from parallel_ppo.reports.procgen_scores import WINDOW, Published, published_curve
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import LEAST_SEEDS, Estimate, SeedEstimate
from parallel_ppo.reports.suite import LEVELS, WITH_SEEN, Plan, Runs, evaluated_returns, run_records, score_of
from parallel_ppo.reports.theme import Panel
from parallel_ppo.reports.words import UNKNOWN, estimate, interval, number

LEVEL_NAMES = {"train": "training levels", "test": "unseen levels"}
SCORE = "normalized score"
two_digits = partial(estimate, digits=2)
two_digits_of = partial(number, digits=2)


@dataclass(frozen=True)
class Entry:
    """One game with one setting."""

    game: str
    setting: str
    runs: Sequence[Run]
    evaluated: Sequence[dict[str, float]]  # of each run: mean return on each kind of levels

    @property
    def name(self) -> str:
        return _joined(self.game, self.setting)

    @property
    def num_levels(self) -> int:
        return int(self.runs[0].number("env.num_levels", 0))

    @property
    def mode(self) -> str:
        return self.runs[0].word("env.distribution_mode", "easy")

    @property
    def steps(self) -> int:
        return int(min(run.steps[-1] for run in self.runs))

    def returns(self, part: str) -> SeedEstimate:
        return statistics.over_seeds([each[part] for each in self.evaluated if part in each])

    def gap(self) -> SeedEstimate:
        return statistics.over_seeds(
            [e["train"] - e["test"] for e in self.evaluated if "test" in e and "train" in e]
        )

    def finals(self) -> list[float]:
        """The mean return of the last episodes of each run."""
        return [float(final.mean()) for run in self.runs if len(final := final_returns(run))]

    def final_return(self) -> SeedEstimate:
        return statistics.over_seeds(self.finals())

    def final_iqm(self) -> Estimate:
        finals = np.array(self.finals())
        if len(finals) < LEAST_SEEDS:
            return Estimate(float(statistics.iqm(finals)) if len(finals) else math.nan)
        return statistics.stratified_bootstrap(statistics.iqm_score, [finals])

    def scores(self, part: str) -> np.ndarray:
        """Normalized, one for each run; empty except for Procgen."""
        both = zip(self.runs, self.evaluated, strict=True)
        found = [score_of(run, each[part]) for run, each in both if part in each]
        return np.array([score for score in found if score is not None])

    def published(self) -> list[Published]:
        first = self.runs[0]
        return published_curve(first.env_id, distribution_mode=self.mode, num_levels=self.num_levels)

    def at_equal_steps(self, point: Published) -> float:
        """Our mean return in the window of the published one."""
        near = [returns_near(run, point.steps, within=WINDOW) for run in self.runs]
        means = [returns.mean() for returns in near if len(returns)]
        return float(np.mean(means)) if means else math.nan


class Standing(NamedTuple):
    """One setting on one kind of levels."""

    setting: str
    levels: str
    scores: dict[str, np.ndarray]  # by game
    iqm: Estimate

    @property
    def name(self) -> str:
        return _joined(self.setting, LEVEL_NAMES[self.levels])

    @property
    def num_runs(self) -> int:
        return sum(map(len, self.scores.values()))


class Results(NamedTuple):
    plan: Plan
    entries: list[Entry]
    standings: list[Standing]  # unseen levels first, then the best setting first


def write_suite(plan: Plan, runs: Runs, directory: Path, *, kind: str = "png") -> list[Path]:
    report = document(results(plan, runs))
    texts = {
        "results.html": as_html(report),
        "results.json": as_json(report),
        "results.csv": to_csv(run_records(plan, runs)),
    }
    return write(directory, texts, report.panels, kind=kind)


def results(plan: Plan, runs: Runs) -> Results:
    entries = [
        Entry(one_line(game), setting, members, [evaluated_returns(plan, run) for run in members])
        for (game, setting), members in runs.items()
    ]
    standings = []
    for part, setting in itertools.product(LEVELS, plan.settings):
        own = {entry.game: entry.scores(part) for entry in entries if entry.setting == setting}
        scores = {game: found for game, found in own.items() if len(found)}
        if scores:
            iqm = statistics.stratified_bootstrap(statistics.iqm_score, list(scores.values()))
            standings.append(Standing(setting, part, scores, iqm))
    standings.sort(key=lambda standing: (standing.levels != "test", -standing.iqm.value))
    return Results(plan, entries, standings)


def document(result: Results) -> Document:
    every = (scores_table, improvements_table, returns_table, published_table, mujoco_table)
    return Document(
        headline=headline(result),
        subtitle=subtitle(result),
        cards=cards(result),
        warnings=warnings(result),
        tables=[table for make in every if (table := make(result)).rows],
        notes=notes(result),
        footnotes=footnotes(result),
        panels=panels(result),
        picture_note=LINES_NOTE + " Dashed: the first setting." * (len(result.plan.settings) > 1),
    )


# --- the answer ---------------------------------------------------------------------------------------------


def leading(result: Results) -> list[Standing]:
    """The settings, best first, on unseen levels if there are any."""
    return [row for row in result.standings if row.levels == result.standings[0].levels]


def headline(result: Results) -> str:
    ranked = leading(result)
    if not ranked:
        finished = count(len(result.entries), "result") if result.entries else "no results yet"
        return f"{size(result)}: {finished}"
    best = ranked[0]
    iqm = f"IQM {two_digits(best.iqm)} on {LEVEL_NAMES[best.levels]}"
    if len(ranked) == 1:
        return f"{best.setting + ': ' if best.setting else ''}{iqm}"
    _, probability = improvement(best, ranked[1])
    if not math.isfinite(probability.value):
        return f"Highest: {best.setting}, {iqm}"
    better = f"better than {ranked[1].setting} with probability {two_digits(probability)}"
    if probability.low > 0.5:
        return f"Best: {best.setting}, {iqm}; {better}"
    return f"No clear winner. Highest: {best.setting}, {iqm}; {better}"


def improvement(better: Standing, worse: Standing) -> tuple[int, Estimate]:
    """In how many games that both have, and with what probability a run of the one beats the other."""
    common = [game for game in better.scores if game in worse.scores]
    pair = [[each.scores[game] for game in common] for each in (better, worse)]
    return len(common), statistics.stratified_bootstrap(statistics.probability_of_improvement, *pair)


def size(result: Results) -> str:
    games, settings = ({getattr(row, name) for row in result.entries} for name in ("game", "setting"))
    seeds = max((len(row.runs) for row in result.entries), default=0)
    parts = [count(len(games), "game"), count(len(settings), "setting"), count(seeds, "seed")]
    return ", ".join(part for part in parts if part != "1 setting")


def subtitle(result: Results) -> str:
    every = [run for entry in result.entries for run in entry.runs]
    facts = {
        "network": [run.word("training.policy") for run in every],
        "environments x steps": [
            f"{run.word('env.num_envs')} x {run.word('training.n_steps')}" for run in every
        ],
        "epochs": [run.word("training.n_epochs") for run in every],
        "machine": [f"{run.cpu_model}, {run.num_cores} cores" for run in every],
        "commit": _commits(every),
        "build": [build for run in every if (build := run.procgen_build)],
    }
    parts = [f"{name} {', '.join(dict.fromkeys(values))}" for name, values in facts.items() if values]
    return " | ".join([size(result), *parts])


def _commits(runs: Iterable[Run]) -> list[str]:
    commits = [one_line(str(run.info.get("git_commit") or "unknown"))[:7] for run in runs]
    return list(dict.fromkeys(commits))


def cards(result: Results) -> list[Card]:
    ranked = leading(result)
    found = [
        Card(
            number(row.iqm.value, 2), f"IQM, {row.name}", interval(row.iqm, 2, "too few runs for an interval")
        )
        for row in ranked
    ]
    if len(ranked) > 1:
        _, probability = improvement(*ranked[:2])
        name = f"Probability that {ranked[0].setting} is better than {ranked[1].setting}"
        detail = interval(probability, 2, "too few runs for an interval")
        found.insert(1, Card(number(probability.value, 2), name, detail))
    steps = sum(int(run.steps[-1]) for entry in result.entries for run in entry.runs)
    missing = _missing(result.plan)
    left = f"{count(len(missing), 'run')} to go" if missing else "all runs finished"
    return [*found, Card(number(steps), "Steps in total", left)]


def _missing(plan: Plan) -> list[str]:
    return [name for name in plan.names() if name not in plan.finished and name not in plan.failed]


def warnings(result: Results) -> list[str]:
    lines = [f"{one_line(name)} failed: {one_line(why)}" for name, why in result.plan.failed.items()]
    missing = _missing(result.plan)
    if missing:
        lines.append(f"{count(len(missing), 'run')} not finished yet: {', '.join(missing)}")
    steps = {entry.steps for entry in result.entries}
    if len(steps) > 1:
        lines.append(
            f"runs end at different steps, {min(steps):,} to {max(steps):,}: returns depend on that too"
        )
    commits = _commits(run for entry in result.entries for run in entry.runs)
    if len(commits) > 1:
        lines.append(f"runs are of different commits: {', '.join(commits)}")
    return lines


# --- tables -------------------------------------------------------------------------------------------------


def scores_table(result: Results) -> Table:
    rows = [
        Row.mixed(
            each.name,
            (len(each.scores), number),
            (each.num_runs, number),
            (each.iqm, partial(estimate, digits=3)),
        )
        for each in result.standings
    ]
    return Table("Normalized scores of all games", ("setting, levels", "games", "runs", "IQM"), rows)


def improvements_table(result: Results) -> Table:
    rows = []
    for better, worse in itertools.combinations(result.standings, 2):
        if better.levels == worse.levels:
            games, probability = improvement(better, worse)
            name = f"{better.setting} better than {worse.setting}, {LEVEL_NAMES[better.levels]}"
            rows.append(Row.mixed(name, (games, number), (probability, two_digits)))
    return Table("Probability of improvement", ("setting, levels", "games", "probability"), rows)


def returns_table(result: Results) -> Table:
    header = (
        "game",
        "seeds",
        "steps",
        "while training",
        *LEVEL_NAMES.values(),
        "with seen",
        "gap",
        "steps/s",
    )
    rows = [
        Row.mixed(
            entry.name,
            (len(entry.runs), number),
            (entry.steps, number),
            *(
                (found, two_digits)
                for found in (entry.final_return(), *map(entry.returns, (*LEVELS, WITH_SEEN)), entry.gap())
            ),
            (np.mean([run.steps[-1] / run.wall_time[-1] for run in entry.runs]), number),
        )
        for entry in result.entries
    ]
    return Table("Mean returns", header, rows)


def published_table(result: Results) -> Table:
    rows = [
        Row.mixed(
            f"{entry.name}, {point.steps / 1e6:g}M steps",
            (entry.at_equal_steps(point), two_digits_of),
            (point.value, two_digits_of),
        )
        for entry in result.entries
        for point in entry.published()
        if entry.steps >= point.steps
    ]
    return Table("Published returns", ("game, steps", "here", "published"), rows)


def mujoco_table(result: Results) -> Table:
    def shown(found: mujoco_scores.Return | None) -> str:
        return UNKNOWN if found is None else f"{found.mean:,.1f} +- {found.deviation:,.1f}"

    rows = [
        Row.mixed(
            entry.name,
            (len(entry.runs), number),
            (entry.final_return(), partial(estimate, digits=1)),
            (entry.final_iqm(), partial(estimate, digits=1)),
            (task.cleanrl, shown),
            (task.zoo, shown),
        )
        for entry in result.entries
        if (task := mujoco_scores.TASKS.get(entry.game)) and entry.steps >= mujoco_scores.STEPS
    ]
    header = ("task", "seeds", "mean", "IQM", "CleanRL, v4", "zoo, tuned, v3")
    return Table("MuJoCo after a million steps, beside published PPO", header, rows)


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


def notes(result: Results) -> list[str]:
    flags = {name: shlex.join([*result.plan.arguments, *own]) for name, own in result.plan.settings.items()}
    lines = [
        f"{name or 'all runs'}: {own or 'default settings'}" for name, own in flags.items() if name or own
    ]
    modes = {f"{entry.mode}, {_levels(entry.num_levels)}" for entry in result.entries}
    return [*lines, f"trained on: {'; '.join(sorted(modes))}"] if modes else lines


def _levels(num_levels: int) -> str:
    return f"{num_levels} levels" if num_levels else "all levels"


def footnotes(result: Results) -> list[str]:
    lines = [
        f"While training: the last {RETURN_WINDOW} episodes of each run, on the levels that its sampler chose (with "
        f"plr not a fair sample). Mean returns: intervals over seeds from {LEAST_SEEDS} seeds on, else each seed."
    ]
    if any(any(entry.evaluated) for entry in result.entries):
        lines.append(
            f"Levels: the final policy of each run plays {result.plan.evaluation_episodes} episodes on its training "
            "levels and as many on unseen levels; the gap is training minus unseen. Unseen levels whose first frame is "
            "that of a training level are left out, except from the column `with seen`, which is the older protocol."
        )
    if result.standings:
        lines.append(
            "Normalized scores: about 0 for a policy that ignores its observations, 1 for the best possible. IQM: "
            "mean of the middle half of all runs. "
            f"Intervals: stratified bootstraps over the runs of each game, 95 %, from {LEAST_SEEDS} runs on."
        )
    if rows := mujoco_table(result).rows:
        shown = {
            name: task for name, task in mujoco_scores.TASKS.items() if any(name in row.name for row in rows)
        }
        changes = [f"{name}: {task.changes}" for name, task in shown.items() if task.changes]
        lines.append(
            "MuJoCo: means of the last 100 training episodes of each seed. CleanRL: the same, with the standard "
            "deviation over 3 seeds. Zoo: one evaluated policy, with the deviation over episodes. Changes in v5: "
            + "; ".join(changes)
            + "."
        )
    if published_table(result).rows:
        lines.append(
            "Published: OpenAI's PPO, IMPALA, 64 x 256, 3 epochs, mean of 3 runs, within 150,000 steps of the "
            "stated step (openai/train-procgen)."
        )
    return lines


# --- pictures -----------------------------------------------------------------------------------------------


def panels(result: Results) -> list[Panel]:
    """The scores of all settings, and the curves of each game."""
    settings = list(result.plan.settings)
    legend = [(name or "this suite", theme.series_color(index)) for index, name in enumerate(settings)]
    found = []
    if result.standings:
        found.append(Panel("iqm", "IQM of normalized scores", partial(_draw_iqm, result), legend))
    for index, game in enumerate(dict.fromkeys(entry.game for entry in result.entries)):
        entries = {entry.setting: entry for entry in result.entries if entry.game == game}
        groups = [Group(name, tuple(entries[name].runs) if name in entries else ()) for name in settings]
        draw = partial(draw_returns, groups, OVER_STEPS, dash_first=len(groups) > 1)
        found.append(Panel(f"game_{index}", game, draw, legend))
    return found


def _draw_iqm(result: Results, axes: Axes) -> None:
    """Filled: training levels; hollow: unseen levels. Below five runs, each run instead of an interval."""
    settings = list(result.plan.settings)
    marks = {"train": ("o", None), "test": ("s", theme.BACKGROUND)}
    for each in result.standings:
        index = settings.index(each.setting)
        place = len(settings) - 1 - index + (0.12 if each.levels == "train" else -0.12)
        color, (marker, face) = theme.series_color(index), marks[each.levels]
        if each.num_runs >= LEAST_SEEDS and math.isfinite(each.iqm.low):
            axes.plot([each.iqm.low, each.iqm.high], [place, place], color=color)
        else:
            scores = np.concatenate(list(each.scores.values()))
            axes.plot(scores, [place] * len(scores), "|", color=color, markersize=9)
        axes.plot(each.iqm.value, place, marker, color=color, markerfacecolor=face or color, markersize=7)
    axes.set_yticks(range(len(settings)), [theme.short(name) for name in reversed(settings)])
    axes.set(ylim=(-0.6, len(settings) - 0.4), xlabel=f"{SCORE} (0 random, 1 best possible)")
    axes.grid(axis="y", visible=False)
    shown = {
        LEVEL_NAMES[part]: marks[part]
        for part in LEVELS
        if any(each.levels == part for each in result.standings)
    }
    if any(each.num_runs < LEAST_SEEDS for each in result.standings):
        shown["each run"] = ("|", None)
    handles = [
        Line2D([], [], linestyle="", color=theme.MUTED, marker=marker, markerfacecolor=face or theme.MUTED)
        for marker, face in shown.values()
    ]
    theme.legend_below(axes, handles, list(shown))
