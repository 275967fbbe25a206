"""The results of a suite as a document: the best setting first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from parallel_ppo.printable import count
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW, return_curve
from parallel_ppo.reports.document import Card, Document, Table, as_csv, as_html, as_json, as_markdown
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.plots import OVER_STEPS, RETURN_LABEL, draw_curves, lines_note
from parallel_ppo.reports.procgen_scores import Published
from parallel_ppo.reports.statistics import LEAST_SEEDS, Estimate
from parallel_ppo.reports.suite import (
    LEVELS,
    Aggregate,
    GameResult,
    Improvement,
    Plan,
    Runs,
    SuiteResult,
    run_records,
    summarise,
)
from parallel_ppo.reports.theme import LIGHT, Legend, Panel
from parallel_ppo.reports.words import estimate, number, span
from parallel_ppo.storage.files import write_atomically

Row = TypeVar("Row", Aggregate, Improvement)
NOTHING = Estimate(float("nan"))
LEVEL_NAMES = {"train": "training levels", "test": "unseen levels"}
LEAST_SEEDS_FOR_A_MEDIAN = 4
SCORE = "normalized score"


def write_suite(plan: Plan, runs: Runs, directory: Path, *, kind: str = "png") -> list[Path]:
    report = document(summarise(plan, runs), runs)
    texts = {
        "results.html": as_html(report),
        "results.md": as_markdown(report),
        "results.json": as_json(report.data),
        "results.csv": as_csv(run_records(plan, runs)),
    }
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    written = [directory / name for name in texts]
    return written + (themes.save_pdfs(report.panels, directory) if kind == "pdf" else [])


def document(result: SuiteResult, runs: Runs) -> Document:
    everything = [Group(setting, tuple(members)) for (_, setting), members in runs.items()]
    return Document(
        headline=headline(result),
        subtitle=subtitle(result),
        cards=cards(result),
        warnings=warnings(result),
        tables=[table for table in tables(result) if table.rows],
        notes=notes(result),
        footnotes=footnotes(result),
        data=asdict(result),
        panels=panels(result, runs),
        picture_note=lines_note(everything) if everything else "",
    )


# --- the answer ---------------------------------------------------------------------------------------------


def leading(result: SuiteResult) -> list[Aggregate]:
    """The settings, best first, on unseen levels if there are any."""
    unseen = [row for row in result.aggregates if row.levels == "test"]
    return unseen or result.aggregates


def headline(result: SuiteResult) -> str:
    ranked = leading(result)
    if not ranked:
        finished = count(len(result.games), "result") if result.games else "no results yet"
        return f"{size(result)}: {finished}"
    best, where = ranked[0], LEVEL_NAMES[ranked[0].levels]
    iqm = f"IQM {estimate(best.iqm, 2)} on {where}"
    if len(ranked) == 1:
        return f"{best.setting + ': ' if best.setting else ''}{iqm}"
    probability = _over_second(result, ranked)
    if probability is None:
        return f"Highest: {best.setting}, {iqm}"
    better = f"better than {ranked[1].setting} with probability {estimate(probability, 2)}"
    if probability.low > 0.5:
        return f"Best: {best.setting}, {iqm}; {better}"
    return f"No clear winner. Highest: {best.setting}, {iqm}; {better}"


def _over_second(result: SuiteResult, ranked: Sequence[Aggregate]) -> Estimate | None:
    pair = (ranked[0].setting, ranked[1].setting, ranked[0].levels)
    found = (row.probability for row in result.improvements if (row.setting, row.over, row.levels) == pair)
    return next(found, None)


def size(result: SuiteResult) -> str:
    games, settings = ({getattr(row, name) for row in result.games} for name in ("game", "setting"))
    seeds = max((len(row.seeds) for row in result.games), default=0)
    parts = [count(len(games), "game"), count(len(settings), "setting"), count(seeds, "seed")]
    return ", ".join(part for part in parts if part != "1 setting")


def subtitle(result: SuiteResult) -> str:
    policies, rollouts, epochs, commits = map(
        ", ".join, (result.policies, result.rollouts, result.epochs, result.commits)
    )
    shape = f"environments x steps {rollouts} | epochs {epochs}"
    return f"{size(result)} | network {policies} | {shape} | {result.machine} | commit {commits}"


def cards(result: SuiteResult) -> list[Card]:
    ranked = leading(result)
    found = [
        Card(
            number(row.iqm.value, 2),
            f"IQM, {_setting_and_levels(row.setting, row.levels)}",
            f"95 %: {span(row.iqm, 2)}" if math.isfinite(row.iqm.low) else "no interval: one seed",
        )
        for row in ranked
    ]
    probability = _over_second(result, ranked) if len(ranked) > 1 else None
    if probability is not None:
        detail = (
            f"95 %: {span(probability, 2)}" if math.isfinite(probability.low) else "no interval: one seed"
        )
        name = f"Probability that {ranked[0].setting} is better than {ranked[1].setting}"
        found.insert(1, Card(number(probability.value, 2), name, detail))
    steps = sum(row.steps * len(row.seeds) for row in result.games)
    left = f"{count(len(result.missing), 'run')} to go" if result.missing else "all runs finished"
    return [*found, Card(number(steps), "Steps in total", left)]


def warnings(result: SuiteResult) -> list[str]:
    lines = [f"{name} failed: {why}" for name, why in result.failed.items()]
    if result.missing:
        lines.append(f"{count(len(result.missing), 'run')} not finished yet: {', '.join(result.missing)}")
    steps = {row.steps for row in result.games}
    if len(steps) > 1:
        lines.append(
            f"runs end at different steps, {min(steps):,} to {max(steps):,}: returns depend on that too"
        )
    if len(result.commits) > 1:
        lines.append(f"runs are of different commits: {', '.join(result.commits)}")
    return lines


# --- tables -------------------------------------------------------------------------------------------------


def tables(result: SuiteResult) -> list[Table]:
    games = [
        [
            _name(row),
            str(len(row.seeds)),
            number(row.steps),
            estimate(row.final_return, 2),
            *(estimate(row.returns.get(part, NOTHING), 2) for part in LEVELS),
            estimate(row.gap, 2),
            number(row.fps),
        ]
        for row in result.games
    ]
    published = [
        [
            _name(row),
            "; ".join(f"{_short(at.steps)}: {at.ours:.1f} / {at.published:.1f}" for at in row.equal_steps)
            or "-",
            "; ".join(f"{_short(point.steps)}: {point.value:.1f}" for point in row.published),
        ]
        for row in result.games
        if row.published
    ]
    improvements = [
        [
            f"{row.setting} better than {row.over}, {LEVEL_NAMES[row.levels]}",
            str(row.num_games),
            estimate(row.probability, 2),
        ]
        for row in _unseen_first(result.improvements)
    ]
    return [
        _aggregate_table(result),
        Table("Probability of improvement", ("setting, levels", "games", "probability"), improvements),
        Table(
            "Mean returns",
            ("game", "seeds", "steps", "while training", *LEVEL_NAMES.values(), "gap", "steps/s"),
            games,
        ),
        Table("Published values", ("game", "at equal steps: ours / published", "published at"), published),
    ]


def _aggregate_table(result: SuiteResult) -> Table:
    """Medians and means over games only if every game has enough seeds."""
    columns = {"IQM": "iqm", "optimality gap": "optimality_gap"}
    if min((row.least_seeds for row in result.aggregates), default=0) >= LEAST_SEEDS_FOR_A_MEDIAN:
        columns |= {"median": "median", "mean": "mean"}
    rows = [
        [
            _setting_and_levels(row.setting, row.levels),
            str(row.num_games) + (f" ({row.num_equal} with runs all equal)" if row.num_equal else ""),
            str(row.num_runs),
            *(estimate(getattr(row, column), 3) for column in columns.values()),
        ]
        for row in _unseen_first(result.aggregates)
    ]
    return Table("Normalized scores of all games", ("setting, levels", "games", "runs", *columns), rows)


def _unseen_first(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.levels != "test")


def _name(row: GameResult) -> str:
    return f"{row.game}, {row.setting}" if row.setting else row.game


def _setting_and_levels(setting: str, levels: str) -> str:
    return f"{setting}, {LEVEL_NAMES[levels]}" if setting else LEVEL_NAMES[levels]


def _short(steps: int) -> str:
    return f"{steps / 1e6:g}M"


def notes(result: SuiteResult) -> list[str]:
    lines = [
        f"{name or 'all runs'}: {flags or 'default settings'}"
        for name, flags in result.settings.items()
        if name or flags
    ]
    modes = sorted({f"{game.distribution_mode}, {_levels(game)}" for game in result.games})
    return [*lines, f"trained on: {'; '.join(modes)}"] if modes else lines


def footnotes(result: SuiteResult) -> list[str]:
    lines = [
        f"While training: the last {RETURN_WINDOW} episodes of each run, on the levels that its sampler chose (with "
        f"plr not a fair sample). Mean returns: intervals over seeds from {LEAST_SEEDS} seeds on, else each seed."
    ]
    if any(game.returns for game in result.games):
        lines.append(
            f"Levels: the final policy of each run plays {result.evaluation_episodes} episodes on its training "
            "levels and as many on unseen levels; the gap is training minus unseen."
        )
    if result.aggregates:
        lines.append(
            "Normalized scores: about 0 for a policy that ignores its observations, 1 for the best possible. IQM: "
            "mean of the middle half of all runs; median and mean: over games; optimality gap: mean distance to 1. "
            "Intervals: stratified bootstraps over the runs of each game, 95 %."
        )
    if any(game.published for game in result.games):
        lines.append(
            "Published: OpenAI's PPO, IMPALA, 64 x 256, 3 epochs, mean of 3 runs, within 0.15 M steps "
            "(openai/train-procgen)."
        )
    return lines


def _levels(game: GameResult) -> str:
    return f"{game.num_levels} levels" if game.num_levels else "all levels"


# --- pictures -----------------------------------------------------------------------------------------------


def panels(result: SuiteResult, runs: Runs) -> list[Panel]:
    """The scores of all settings, performance profiles, and the curves of each game."""
    settings = list(result.settings)
    legend = [(name or "this suite", themes.color_of(LIGHT, index)) for index, name in enumerate(settings)]
    found = []
    if result.aggregates:
        found.append(Panel("iqm", "IQM of normalized scores", partial(_draw_iqm, result, legend)))
    for part in reversed(LEVELS):
        profiles = [row for row in result.aggregates if row.levels == part]
        if profiles:
            title = f"Performance profile, {LEVEL_NAMES[part]}"
            found.append(Panel(f"profile_{part}", title, partial(_draw_profile, profiles, settings), legend))
    for index, game in enumerate(dict.fromkeys(row.game for row in result.games)):
        rows = [row for row in result.games if row.game == game]
        groups = [Group(name, tuple(runs.get((game, name), ()))) for name in settings]
        points = sorted({point for row in rows for point in _reached(row)}, key=lambda point: point.steps)
        shown = [*legend, ("published", LIGHT.text)] if points else legend
        found.append(Panel(f"game_{index}", game, partial(_draw_game, groups, points), shown))
    return found


def _reached(game: GameResult) -> list[Published]:
    return [point for point in game.published if point.steps <= 1.05 * game.steps]


def _draw_iqm(result: SuiteResult, legend: Legend, axes: Axes) -> None:
    """Filled: training levels; hollow: unseen levels. Below five runs, each run instead of an interval."""
    colors = dict(zip(result.settings, (color for _, color in legend), strict=True))
    places = {setting: index for index, setting in enumerate(reversed(list(result.settings)))}
    for row in result.aggregates:
        place = places[row.setting] + (0.12 if row.levels == "train" else -0.12)
        color = colors[row.setting]
        face = color if row.levels == "train" else LIGHT.background
        marker = "o" if row.levels == "train" else "s"
        if row.num_runs >= LEAST_SEEDS and math.isfinite(row.iqm.low):
            axes.plot([row.iqm.low, row.iqm.high], [place, place], color=color)
        else:
            scores = [
                x
                for game in result.games
                if game.setting == row.setting
                for x in game.scores.get(row.levels, [])
            ]
            axes.plot(scores, [place] * len(scores), "|", color=color, markersize=9)
        axes.plot(row.iqm.value, place, marker, color=color, markerfacecolor=face, markersize=7)
    axes.set_yticks(list(places.values()), [themes.short(name) for name in places])
    axes.set(ylim=(-0.6, len(places) - 0.4), xlabel=f"{SCORE} (0 random, 1 best possible)")
    axes.grid(axis="y", visible=False)
    kinds = [part for part in LEVELS if any(row.levels == part for row in result.aggregates)]
    marks = {"train": ("o", LIGHT.muted), "test": ("s", LIGHT.background)}
    themes.legend_below(
        axes,
        [Line2D([], [], linestyle="", color=LIGHT.muted, marker=marks[part][0], markerfacecolor=marks[part][1])
         for part in kinds],
        [LEVEL_NAMES[part] for part in kinds],
    )  # fmt: skip


def _draw_profile(profiles: Sequence[Aggregate], settings: Sequence[str], axes: Axes) -> None:
    for row in profiles:
        color, at = themes.color_of(LIGHT, settings.index(row.setting)), row.profile["at"]
        axes.step(at, row.profile["value"], where="post", color=color)
        if row.num_runs >= LEAST_SEEDS:
            axes.fill_between(
                at, row.profile["low"], row.profile["high"], step="post", color=color, alpha=0.2, linewidth=0
            )
    lowest = min(row.profile["at"][0] for row in profiles)
    axes.set(ylim=(-0.03, 1.03), xlim=(lowest, None), xlabel=SCORE, ylabel="share of runs above it")


def _draw_game(groups: Sequence[Group], points: Sequence[Published], axes: Axes) -> None:
    drawn = draw_curves(axes, groups, OVER_STEPS, return_curve, return_curve)
    for point in points:
        axes.scatter(point.steps, point.value, color=LIGHT.text, marker="D", zorder=4)
    OVER_STEPS.label(axes)
    axes.set_ylabel(RETURN_LABEL)
    axes.locator_params(axis="x", nbins=4)
    if not drawn:
        themes.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")
