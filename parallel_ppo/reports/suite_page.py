"""The results of a suite as HTML, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallel_ppo.reports import html
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW, return_curve
from parallel_ppo.reports.procgen_scores import Published
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import Estimate, mean_curve
from parallel_ppo.reports.suite import GameResult, SuiteResult, as_json
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import count, estimate, json_ready, number
from parallel_ppo.storage.files import write_atomically

HEADER = (
    "game",
    "seeds",
    "steps",
    "return (95 %)",
    "normalised",
    "at equal steps: ours / published",
    "published at",
    "steps/s",
)


def write_suite(result: SuiteResult, runs: dict[str, list[Run]], directory: Path) -> list[Path]:
    texts = {
        "results.html": suite_page(result, runs),
        "results.md": suite_markdown(result),
        "results.json": json.dumps(json_ready(as_json(result)), indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    return [directory / name for name in texts]


def title(result: SuiteResult) -> str:
    seeds = max((len(game.seeds) for game in result.games), default=0)
    return f"{count(len(result.games), 'game')}, {count(seeds, 'seed')}"


def about(result: SuiteResult) -> str:
    policies, epochs = (", ".join(map(str, values)) for values in (result.policies, result.epochs))
    return f"network {policies} | epochs {epochs} | {result.machine}"


def game_rows(result: SuiteResult) -> list[list[str]]:
    return [
        [
            game.game,
            str(len(game.seeds)),
            number(game.steps),
            estimate(game.final_return, 2),
            number(float(np.mean(game.normalised)), 2) if game.normalised else "-",
            "; ".join(
                f"{_short(row.steps)}: {row.ours:.1f} / {row.published:.1f}" for row in game.equal_steps
            )
            or "-",
            "; ".join(f"{_short(point.steps)}: {point.value:.1f}" for point in game.published) or "-",
            number(game.fps),
        ]
        for game in result.games
    ]


def _short(steps: int) -> str:
    return f"{steps / 1e6:g}M"


def aggregate_lines(result: SuiteResult) -> list[str]:
    if not math.isfinite(result.normalised_mean.value):
        return ["No normalised aggregate: no game with a published range has finished an episode."]
    return [
        f"Normalised return, mean: {estimate(result.normalised_mean, 3)}",
        f"Normalised return, interquartile mean: {estimate(result.normalised_iqm, 3)}",
    ]


def notes(result: SuiteResult) -> list[str]:
    lines = [f"{name} failed: {why}" for name, why in result.failed.items()]
    if result.missing:
        lines.append(f"not finished yet: {', '.join(result.missing)}")
    modes = sorted({f"{game.distribution_mode}, {_levels(game)}" for game in result.games})
    lines.append("levels: " + "; ".join(modes))
    lines.append(
        f"returns are of the last {RETURN_WINDOW} training episodes (at least {LEAST_EPISODES}); the "
        "interval is over seeds"
    )
    if any(game.published for game in result.games):
        lines.append(
            "published: OpenAI's PPO, IMPALA, 64 x 256, 3 epochs, mean of 3 runs, within 0.15 M steps "
            "(openai/train-procgen)"
        )
    return lines


def _levels(game: GameResult) -> str:
    return f"{game.num_levels} levels" if game.num_levels else "all levels"


def suite_markdown(result: SuiteResult) -> str:
    lines = [
        f"# {title(result)}",
        "",
        about(result),
        "",
        *[f"- {line}" for line in aggregate_lines(result)],
        "",
    ]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in game_rows(result)]
    return "\n".join([*lines, "", *[f"- {line}" for line in notes(result)]]) + "\n"


def suite_page(result: SuiteResult, runs: dict[str, list[Run]]) -> str:
    body = [
        f"<h1>{html.escape(title(result))}</h1>",
        html.paragraph(about(result), kind="muted"),
        html.cards(_cards(result)),
        html.pictures([(game.game, partial(_game_figure, game, runs[game.game])) for game in result.games]),
        "<h2>Games</h2>",
        html.table(HEADER, game_rows(result), numbers_from=1),
        html.bullets("Notes", notes(result)),
    ]
    return html.page(title=title(result), body=body)


def _cards(result: SuiteResult) -> list[str]:
    def detail(value: Estimate) -> str:
        return (
            f"95 %: {value.low:.3f} to {value.high:.3f}"
            if math.isfinite(value.low)
            else "no interval: one seed"
        )

    mean, iqm = result.normalised_mean, result.normalised_iqm
    steps = sum(game.steps * len(game.seeds) for game in result.games)
    return [
        html.card(number(mean.value, 3), "Normalised, mean", detail(mean)),
        html.card(number(iqm.value, 3), "Normalised, IQM", detail(iqm)),
        html.card(
            number(steps),
            "Steps in total",
            f"{len(result.missing)} runs to go" if result.missing else "all done",
        ),
    ]


def _game_figure(game: GameResult, runs: Sequence[Run], theme: Theme) -> Figure:
    legend = [("mean over seeds, 95 %", theme.series[1])]
    if _reached(game):
        legend.append(("published", theme.series[0]))
    return themes.panel_figure(lambda axes, _: _draw_game(axes, game, runs, theme), theme, legend=legend)


def _reached(game: GameResult) -> list[Published]:
    return [point for point in game.published if point.steps <= 1.05 * game.steps]


def _draw_game(axes: Axes, game: GameResult, runs: Sequence[Run], theme: Theme) -> None:
    """Our curve, thin for each seed, and the published points where our steps reach them."""
    axes.set_title(game.game)
    curves = [return_curve(run) for run in runs]
    for run, curve in zip(runs, curves, strict=True):
        axes.plot(run.steps, curve, color=theme.series[1], alpha=0.3, linewidth=0.8)
    mean = mean_curve([run.steps for run in runs], curves)
    if not len(mean[0]):
        themes.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")
        return
    themes.line(axes, mean, color=theme.series[1])
    for point in _reached(game):
        axes.scatter(point.steps, point.value, color=theme.series[0], marker="D", zorder=4)
    themes.steps_axis(axes)
    axes.set_ylabel("return")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=4)
