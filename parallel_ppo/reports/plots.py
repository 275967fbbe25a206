"""The curves of one or several runs: what was learned, how fast, and with what resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parallel_ppo.records.metrics import METRICS
from parallel_ppo.reports import theme
from parallel_ppo.reports.curves import (
    LEAST_EPISODES,
    RETURN_WINDOW,
    iteration_returns,
    phase_cost,
    return_curve,
    smoothed,
    warm_up,
)
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import LEAST_SEEDS, mean_curve
from parallel_ppo.reports.theme import PHASES, Legend, Panel

RETURN_LABEL = f"Return (last {RETURN_WINDOW} training episodes)"
EVALUATIONS = {"eval_train_return": "training levels", "eval_test_return": "unseen levels"}
TITLES = {"approx_kl": "KL of the update", "rss_mb": "Memory, all processes"}
CURVES = ("episode_length_mean", "entropy", "policy_loss", "value_loss", "approx_kl", "rss_mb")
CURIOSITY_CURVES = (
    "intrinsic_reward",
    "intrinsic_return",
    "predictor_loss",
    "inverse_loss",
    "forward_loss",
    "intrinsic_explained_variance",
    "episodic_memory_size",
)
LINES_NOTE = (
    f"Thick lines: smoothed over a twentieth of the run, mean over seeds; returns: mean of the last {RETURN_WINDOW} "
    f"episodes. Thin lines: each iteration of a single run, each of up to {LEAST_SEEDS - 1} seeds. "
    f"Bands: 95 % bootstrap over {LEAST_SEEDS} seeds or more."
)
Values = Callable[[Run], np.ndarray]


@dataclass(frozen=True)
class Over:
    """The horizontal axis: environment steps, or wall time in a fitting unit."""

    name: str
    scale: float = 1.0
    unit: str = ""

    def of(self, run: Run) -> np.ndarray:
        return run.steps if self.name == "steps" else run.wall_time / self.scale

    def label(self, axes: Axes) -> None:
        if self.name == "steps":
            theme.steps_axis(axes)
        else:
            axes.set_xlabel(f"wall time ({self.unit})")
        axes.set_xlim(left=0)


OVER_STEPS = Over("steps")


def over_time(groups: Sequence[Group]) -> Over:
    ends = [float(np.nanmax(run.wall_time, initial=0)) for group in groups for run in group.runs]
    return Over("time", *theme.time_unit(max(ends)))


def panels_of(groups: Sequence[Group]) -> list[Panel]:
    """All panels; those of curiosity and evaluations only if a run has them."""
    written = {name for group in groups for run in group.runs for name in run.columns}
    legend = colors(groups) if len(groups) > 1 else ()
    returns = partial(draw_returns, groups)
    panels = [
        Panel("return", RETURN_LABEL, partial(returns, OVER_STEPS), legend),
        Panel("return_over_time", RETURN_LABEL, partial(returns, over_time(groups)), legend),
    ]
    if written & EVALUATIONS.keys():
        panels.append(Panel("evaluation", "Return of evaluations", partial(draw_evaluations, groups), legend))
    for name in (*CURVES, *(name for name in CURIOSITY_CURVES if name in written)):
        label = _label(name)
        panels.append(Panel(name, label, partial(_draw_column, groups, name, label), legend))
    costs = [(group.label, phase_cost(group.runs)) for group in groups]
    return [
        *panels,
        Panel("throughput", "Throughput, end to end (steps/s)", partial(draw_throughput, groups), legend),
        Panel("phases", "Where the time goes", partial(draw_phase_bars, costs)),
    ]


def _label(column: str) -> str:
    title, unit = TITLES.get(column, column.replace("_", " ").capitalize()), METRICS[column].unit
    return f"{title} ({unit})" if unit else title


def colors(groups: Sequence[Group]) -> Legend:
    return [(group.label, theme.series_color(index)) for index, group in enumerate(groups)]


def title_of(groups: Sequence[Group]) -> str:
    games = sorted({short_env(run.env_id) for group in groups for run in group.runs} - {"unknown"})
    name = groups[0].label if len(groups) == 1 else f"{sum(len(group.runs) for group in groups)} runs"
    return name if games in ([], [name]) else f"{', '.join(games)}: {name}"


# --- curves -------------------------------------------------------------------------------------------------


def draw_curves(
    axes: Axes,
    groups: Sequence[Group],
    over: Over,
    smoothed: Values,
    raw: Values,
    *,
    label: str,
    empty: str = "",
    dash_first: bool = False,
    **style: Any,
) -> bool:
    """Draws the mean of each group in its color, with each iteration of a single run, each of a few seeds, or
    the band of many seeds. Without anything to draw the panel says `empty`, and the result is False.
    """
    drawn = False
    for index, group in reversed(list(enumerate(groups))):
        color = theme.series_color(index)
        curves = [_known(over, run, smoothed) for run in group.runs]
        thin = curves if len(curves) > 1 else [_known(over, run, raw) for run in group.runs]
        for x, y in thin if len(thin) < LEAST_SEEDS else ():
            axes.plot(x, y, color=color, alpha=0.35, linewidth=0.8)
        grid, mean, low, high = mean_curve([x for x, _ in curves], [y for _, y in curves])
        look = {"marker": "o" if len(grid) == 1 else None} | style
        if not any(np.array_equal(grid, x) for x, _ in curves):
            look["marker"] = None  # positions between those that were measured
        if dash_first and index == 0:
            look["linestyle"] = (0, (4, 3))
        axes.plot(grid, mean, color=color, **look)
        if np.isfinite(low).any():
            axes.fill_between(grid, low, high, color=color, alpha=0.2, linewidth=0)
        drawn = drawn or len(grid) > 0
    over.label(axes)
    axes.set_ylabel(label)
    if empty and not drawn:
        theme.empty(axes, empty)
    return drawn


def _known(over: Over, run: Run, values: Values) -> tuple[np.ndarray, np.ndarray]:
    x, y = over.of(run), values(run)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def draw_returns(groups: Sequence[Group], over: Over, axes: Axes, *, dash_first: bool = False) -> None:
    raw = iteration_returns if len(groups) == 1 else return_curve
    empty = f"fewer than {LEAST_EPISODES} episodes have finished"
    draw_curves(axes, groups, over, return_curve, raw, label=RETURN_LABEL, empty=empty, dash_first=dash_first)


def _draw_column(groups: Sequence[Group], column: str, label: str, axes: Axes) -> None:
    raw = partial(Run.column, name=column)
    empty = f"no {column} in the log"
    if draw_curves(axes, groups, OVER_STEPS, lambda run: smoothed(raw(run)), raw, label=label, empty=empty):
        if column == "rss_mb":
            theme.from_zero(axes)
        theme.plain_numbers(axes)


def draw_throughput(groups: Sequence[Group], axes: Axes) -> None:
    empty = "too few iterations with a wall_time"
    if draw_curves(axes, groups, OVER_STEPS, _smoothed_fps, _iteration_fps, label="steps/s", empty=empty):
        theme.from_zero(axes)
        theme.plain_numbers(axes)


def _iteration_fps(run: Run) -> np.ndarray:
    fps = run.iteration_steps() / np.maximum(run.iteration_seconds(), 1e-9)
    fps[: warm_up(run)] = np.nan
    return fps


def _smoothed_fps(run: Run) -> np.ndarray:
    """Steps over seconds: a mean of ratios would count short iterations too much."""
    known = np.where(np.isfinite(_iteration_fps(run)), 1.0, np.nan)
    steps, seconds = run.iteration_steps() * known, run.iteration_seconds() * known
    return smoothed(steps) / np.maximum(smoothed(seconds), 1e-9)


def draw_evaluations(groups: Sequence[Group], axes: Axes, *, dash_first: bool = False) -> None:
    """Procgen's picture of generalization: the same policy on training and on unseen levels."""
    for (column, name), line, marker in zip(EVALUATIONS.items(), ("-", ":"), ("o", "s"), strict=True):
        face = None if line == "-" else theme.BACKGROUND
        style: Any = {"linestyle": line, "marker": marker, "markersize": 4, "markerfacecolor": face}
        options = style | {"label": "Return of evaluations", "dash_first": dash_first and line == "-"}
        if draw_curves(axes, groups, OVER_STEPS, partial(Run.column, name=column), _nothing, **options):
            axes.plot([], [], color=theme.TEXT, label=name, **style)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(loc="best")


def _nothing(run: Run) -> np.ndarray:
    return np.full(len(run), np.nan)


# --- phases -------------------------------------------------------------------------------------------------


def draw_phase_bars(costs: Sequence[tuple[str, dict[str, float]]], axes: Axes) -> None:
    """One bar per group, as long as its time per step, split by phase."""
    places = np.arange(len(costs))[::-1]
    left = np.zeros(len(costs))
    totals = np.nan_to_num([sum(cost.values()) for _, cost in costs])
    scale, unit = theme.time_unit(float(totals.max()))
    for name, (shown, gray) in PHASES.items():
        width = np.nan_to_num([cost[name] for _, cost in costs])
        if not width.max() > 0.002 * totals.max():
            continue
        axes.barh(places, width / scale, left=left / scale, color=gray, height=0.5, label=shown)
        for place, start, value, total in zip(places, left, width, totals, strict=True):
            if value > 0.09 * totals.max():
                middle = (start + value / 2) / scale
                axes.text(middle, place, f"{100 * value / total:.0f}%", ha="center", va="center")
        left += width
    for place, (label, _) in zip(places, costs, strict=True):
        axes.annotate(theme.short(label), (0, place + 0.29), xytext=(2, 3), textcoords="offset points")
    axes.set(yticks=[], xlabel=f"{unit} per 1,000 environment steps", ylim=(-0.5, len(costs) - 0.05))
    axes.grid(axis="y", visible=False)
    if totals.any():
        theme.legend_below(axes)
