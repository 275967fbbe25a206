"""The results of a suite as HTML, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallel_ppo.printable import count
from parallel_ppo.reports import html
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW, return_curve
from parallel_ppo.reports.procgen_scores import Published
from parallel_ppo.reports.statistics import Estimate, mean_curve
from parallel_ppo.reports.suite import LEVELS, PROFILE_AT, Aggregate, GameResult, Runs, SuiteResult
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import estimate, json_ready, number
from parallel_ppo.storage.files import write_atomically

NOTHING = Estimate(float("nan"))
LEVEL_NAMES = {"train": "training levels", "test": "unseen levels"}
GAMES_HEADER = (
    "game",
    "seeds",
    "steps",
    "while training",
    "training levels",
    "unseen levels",
    "gap",
    "steps/s",
)
SCORES_HEADER = ("game, levels", "runs", "IQM", "median", "mean")
PUBLISHED_HEADER = ("game", "at equal steps: ours / published", "published at")
AGGREGATES_HEADER = ("setting, levels", "games", "runs", "IQM", "median", "mean", "optimality gap")
IMPROVEMENTS_HEADER = ("setting, levels", "games", "probability (95 %)")


def write_suite(result: SuiteResult, runs: Runs, directory: Path) -> list[Path]:
    texts = {
        "results.html": suite_page(result, runs),
        "results.md": suite_markdown(result),
        "results.json": json.dumps(json_ready(asdict(result)), indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    return [directory / name for name in texts]


def title(result: SuiteResult) -> str:
    games, settings = ({getattr(row, name) for row in result.games} for name in ("game", "setting"))
    seeds = max((len(row.seeds) for row in result.games), default=0)
    parts = [count(len(games), "game"), count(len(settings), "setting"), count(seeds, "seed")]
    return ", ".join(part for part in parts if part != "1 setting")


def about(result: SuiteResult) -> str:
    policies, rollouts, epochs, commits = (
        ", ".join(map(str, values))
        for values in (result.policies, result.rollouts, result.epochs, result.commits)
    )
    shape = f"environments x steps {rollouts} | epochs {epochs}"
    return f"network {policies} | {shape} | {result.machine} | commit {commits}"


def _name(row: GameResult) -> str:
    return f"{row.game}, {row.setting}" if row.setting else row.game


def game_rows(result: SuiteResult) -> list[list[str]]:
    return [
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


def score_rows(result: SuiteResult) -> list[list[str]]:
    return [
        [
            f"{_name(row)}, {LEVEL_NAMES[part]}",
            str(len(scores.runs)),
            *(estimate(value, 3) for value in (scores.iqm, scores.median, scores.mean)),
        ]
        for row in result.games
        for part, scores in row.normalised.items()
    ]


def published_rows(result: SuiteResult) -> list[list[str]]:
    return [
        [
            _name(row),
            "; ".join(f"{_short(at.steps)}: {at.ours:.1f} / {at.published:.1f}" for at in row.equal_steps)
            or "-",
            "; ".join(f"{_short(point.steps)}: {point.value:.1f}" for point in row.published),
        ]
        for row in result.games
        if row.published
    ]


def _setting_and_levels(setting: str, levels: str) -> str:
    return f"{setting}, {LEVEL_NAMES[levels]}" if setting else LEVEL_NAMES[levels]


def aggregate_rows(result: SuiteResult) -> list[list[str]]:
    return [
        [
            _setting_and_levels(row.setting, row.levels),
            str(row.num_games) + (f" ({row.num_equal} with runs all equal)" if row.num_equal else ""),
            str(row.num_runs),
            *(estimate(value, 3) for value in (row.iqm, row.median, row.mean, row.optimality_gap)),
        ]
        for row in result.aggregates
    ]


def improvement_rows(result: SuiteResult) -> list[list[str]]:
    return [
        [
            f"{row.setting} better than {row.over}, {LEVEL_NAMES[row.levels]}",
            str(row.num_games),
            estimate(row.probability, 2),
        ]
        for row in result.improvements
    ]


def _short(steps: int) -> str:
    return f"{steps / 1e6:g}M"


def notes(result: SuiteResult) -> list[str]:
    lines = [f"{name} failed: {why}" for name, why in result.failed.items()]
    if result.missing:
        lines.append(f"not finished yet: {', '.join(result.missing)}")
    for name, flags in result.settings.items():
        if name or flags:
            lines.append(f"{name or 'all runs'}: {flags or 'default settings'}")
    modes = sorted({f"{game.distribution_mode}, {_levels(game)}" for game in result.games})
    lines.append("trained on: " + "; ".join(modes))
    lines.append(
        f"while training: the last {RETURN_WINDOW} episodes of a run (at least {LEAST_EPISODES}), on the levels "
        "that its sampler chose (plr: not a fair sample); intervals are over seeds, at 95 %"
    )
    if any(game.returns for game in result.games):
        lines.append(
            f"levels: the policy at the end of each run plays {result.evaluation_episodes} episodes on its "
            "training levels, and as many on levels it has never seen; gap: training minus unseen"
        )
    if result.aggregates:
        lines.append(
            "normalised: 0 is about a policy that does not look, 1 the best possible; IQM: mean of the middle half"
            " of all runs; median and mean: of all games, over games; of one game, over its runs; optimality"
            " gap: what is missing to 1 on average; intervals: runs are drawn again within each game"
        )
    if any(game.published for game in result.games):
        lines.append(
            "published: OpenAI's PPO, IMPALA, 64 x 256, 3 epochs, mean of 3 runs, within 0.15 M steps "
            "(openai/train-procgen); ours at equal steps: within as many, as far as the runs go"
        )
    return lines


def _levels(game: GameResult) -> str:
    return f"{game.num_levels} levels" if game.num_levels else "all levels"


Table = tuple[str, Sequence[str], list[list[str]]]  # title, header, rows


def tables(result: SuiteResult) -> list[Table]:
    """Those that have rows."""
    found: list[Table] = [
        ("Normalised scores of all games", AGGREGATES_HEADER, aggregate_rows(result)),
        ("Probability of improvement", IMPROVEMENTS_HEADER, improvement_rows(result)),
        ("Returns", GAMES_HEADER, game_rows(result)),
        ("Normalised scores of each game", SCORES_HEADER, score_rows(result)),
        ("Published values", PUBLISHED_HEADER, published_rows(result)),
    ]
    return [table for table in found if table[2]]


def suite_markdown(result: SuiteResult) -> str:
    lines = [f"# {title(result)}", "", about(result), ""]
    for name, header, rows in tables(result):
        lines += [f"## {name}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += [*("| " + " | ".join(row) + " |" for row in rows), ""]
    return "\n".join([*lines, *[f"- {line}" for line in notes(result)]]) + "\n"


def suite_page(result: SuiteResult, runs: Runs) -> str:
    body = [
        f"<h1>{html.escape(title(result))}</h1>",
        html.paragraph(about(result), kind="muted"),
        html.cards(_cards(result)),
        html.pictures(suite_pictures(result, runs)),
    ]
    for name, header, rows in tables(result):
        body += [f"<h2>{html.escape(name)}</h2>", html.table(header, rows, numbers_from=1)]
    return html.page(title=title(result), body=[*body, html.bullets("Notes", notes(result))])


def _cards(result: SuiteResult) -> list[str]:
    """The interquartile mean of each setting, on unseen levels where there are any."""
    part = "test" if any(row.levels == "test" for row in result.aggregates) else "train"
    found = []
    for row in result.aggregates:
        if row.levels == part:
            certain = math.isfinite(row.iqm.low)
            detail = f"95 %: {row.iqm.low:.3f} to {row.iqm.high:.3f}" if certain else "no interval: one seed"
            name = f"IQM, {_setting_and_levels(row.setting, part)}"
            found.append(html.card(number(row.iqm.value, 3), name, detail))
    steps = sum(row.steps * len(row.seeds) for row in result.games)
    left = f"{count(len(result.missing), 'run')} to go" if result.missing else "all done"
    return [*found, html.card(number(steps), "Steps in total", left)]


# --- pictures -----------------------------------------------------------------------------------------------


def suite_pictures(result: SuiteResult, runs: Runs) -> list[tuple[str, Callable[[Theme], Figure]]]:
    """A curve for each game, and a performance profile for each kind of levels."""
    settings = list(dict.fromkeys(row.setting for row in result.games))
    found: list[tuple[str, Callable[[Theme], Figure]]] = []
    for game in dict.fromkeys(row.game for row in result.games):
        rows = [row for row in result.games if row.game == game]
        found.append((game, partial(_game_figure, rows, runs, settings)))
    for part in LEVELS:
        profiles = [row for row in result.aggregates if row.levels == part]
        if profiles:
            found.append(
                (f"Performance profile, {LEVEL_NAMES[part]}", partial(_profile_figure, profiles, settings))
            )
    return found


def _color(theme: Theme, settings: Sequence[str], setting: str) -> str:
    """Orange is what was published."""
    return themes.color_of(theme, 1 + settings.index(setting))


def _legend(theme: Theme, settings: Sequence[str], shown: Sequence[str]) -> list[tuple[str, str]]:
    return [(setting or "mean over seeds, 95 %", _color(theme, settings, setting)) for setting in shown]


def _game_figure(rows: Sequence[GameResult], runs: Runs, settings: Sequence[str], theme: Theme) -> Figure:
    legend = _legend(theme, settings, [row.setting for row in rows])
    if any(map(_reached, rows)):
        legend.append(("published", theme.series[0]))
    return themes.panel_figure(
        lambda axes, _: _draw_game(axes, rows, runs, settings, theme), theme, legend=legend
    )


def _reached(game: GameResult) -> list[Published]:
    return [point for point in game.published if point.steps <= 1.05 * game.steps]


def _draw_game(
    axes: Axes, rows: Sequence[GameResult], runs: Runs, settings: Sequence[str], theme: Theme
) -> None:
    """Our curves, thin for each seed, and the published points where our steps reach them."""
    axes.set_title(rows[0].game)
    for row in rows:
        members, color = runs[row.game, row.setting], _color(theme, settings, row.setting)
        curves = [return_curve(run) for run in members]
        for run, curve in zip(members, curves, strict=True):
            axes.plot(run.steps, curve, color=color, alpha=0.3, linewidth=0.8)
        themes.line(axes, mean_curve([run.steps for run in members], curves), color=color)
    if not any(np.isfinite(line.get_ydata()).any() for line in axes.lines):
        themes.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")
        return
    for point in {point for row in rows for point in _reached(row)}:
        axes.scatter(point.steps, point.value, color=theme.series[0], marker="D", zorder=4)
    themes.steps_axis(axes)
    axes.set_ylabel("return while training")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=4)


def _profile_figure(profiles: Sequence[Aggregate], settings: Sequence[str], theme: Theme) -> Figure:
    def draw(axes: Axes, theme: Theme) -> None:
        axes.set_title(f"Performance profile, {LEVEL_NAMES[profiles[0].levels]}")
        for row in profiles:
            color = _color(theme, settings, row.setting)
            axes.step(PROFILE_AT, row.profile["value"], where="post", color=color, linewidth=2)
            low, high = row.profile["low"], row.profile["high"]
            axes.fill_between(PROFILE_AT, low, high, step="post", color=color, alpha=0.22, linewidth=0)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(0, 1)
        axes.set_xlabel("normalised score")
        axes.set_ylabel("share of runs above it")

    legend = _legend(theme, settings, [row.setting for row in profiles])
    return themes.panel_figure(draw, theme, legend=legend)
