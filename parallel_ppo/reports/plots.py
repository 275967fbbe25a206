"""The curves of one or several runs: what was learned, how fast, and with what resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parallel_ppo.reports import theme
from parallel_ppo.reports.curves import (
    LEAST_EPISODES,
    RETURN_WINDOW,
    iteration_returns,
    phase_cost,
    phase_seconds,
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
CURVES = {  # column: title, unit
    "episode_length_mean": ("Episode length", "steps"),
    "entropy": ("Policy entropy", "nats"),
    "policy_loss": ("Policy loss", ""),
    "value_loss": ("Value loss", ""),
    "approx_kl": ("KL of the update", "nats"),
    "rss_mb": ("Memory, all processes", "MB"),
}
CURIOSITY_CURVES = {
    "intrinsic_reward": ("Intrinsic reward, before scaling", ""),
    "intrinsic_reward_scaled": ("Intrinsic reward, scaled", ""),
    "intrinsic_return": ("Intrinsic return, before scaling", ""),
    "predictor_loss": ("Loss of the predictor", ""),
    "inverse_loss": ("Loss of the inverse model", ""),
    "forward_loss": ("Loss of the forward model", ""),
    "intrinsic_explained_variance": ("Explained variance of the intrinsic value", ""),
    "episodic_memory_size": ("Episodic memory", "embeddings"),
}
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


def panels_of(groups: Sequence[Group], over: Over) -> list[Panel]:
    """All panels; those of curiosity and evaluations only if a run has them."""
    written = {name for group in groups for run in group.runs for name in run.columns}
    legend = colors(groups) if len(groups) > 1 else ()
    curves = CURVES | {name: curve for name, curve in CURIOSITY_CURVES.items() if name in written}
    panels = [Panel("return", RETURN_LABEL, partial(draw_returns, groups, over), legend)]
    if written & EVALUATIONS.keys():
        panels.append(
            Panel("evaluation", "Return of evaluations", partial(draw_evaluations, groups, over), legend)
        )
    for name, (title, unit) in curves.items():
        label = f"{title} ({unit})" if unit else title
        panels.append(Panel(name, label, partial(_draw_column, groups, over, name, label), legend))
    speed = Panel(
        "throughput", "Throughput, end to end (steps/s)", partial(draw_throughput, groups, over), legend
    )
    return [*panels, speed, phase_panel(groups, over)]


def colors(groups: Sequence[Group]) -> Legend:
    return [(group.label, theme.series_color(index)) for index, group in enumerate(groups)]


def title_of(groups: Sequence[Group]) -> str:
    games = sorted({short_env(run.env_id) for group in groups for run in group.runs} - {"unknown"})
    name = groups[0].label if len(groups) == 1 else f"{sum(len(group.runs) for group in groups)} runs"
    return name if games in ([], [name]) else f"{', '.join(games)}: {name}"


def lines_note(groups: Sequence[Group]) -> str:
    """Explains thick lines, thin lines and bands."""
    sizes = {len(group.runs) for group in groups}
    note = f"Thick lines: smoothed over a twentieth of the run; returns: mean of the last {RETURN_WINDOW} episodes"
    if max(sizes) > 1:
        note += "; with several seeds their mean"
    thin = ["each iteration (one seed)"] if 1 in sizes else []
    thin += [f"each seed (2 to {LEAST_SEEDS - 1} seeds)"] if sizes & set(range(2, LEAST_SEEDS)) else []
    note += f". Thin lines: {', '.join(thin)}" if thin else ""
    band = (
        f" Bands: 95 % bootstrap over seeds (from {LEAST_SEEDS} seeds on)."
        if max(sizes) >= LEAST_SEEDS
        else ""
    )
    return f"{note}.{band}"


# --- curves -------------------------------------------------------------------------------------------------


def draw_curves(
    axes: Axes,
    groups: Sequence[Group],
    over: Over,
    smoothed: Values,
    raw: Values,
    *,
    dash_first: bool = False,
    **style: Any,
) -> bool:
    """Draws the mean of each group in its color, with each iteration of a single run, each of a few seeds, or
    the band of many seeds. Returns whether there was anything to draw.
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
    return drawn


def _known(over: Over, run: Run, values: Values) -> tuple[np.ndarray, np.ndarray]:
    x, y = over.of(run), values(run)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def draw_returns(groups: Sequence[Group], over: Over, axes: Axes, *, dash_first: bool = False) -> None:
    raw = iteration_returns if len(groups) == 1 else return_curve
    drawn = draw_curves(axes, groups, over, return_curve, raw, dash_first=dash_first)
    axes.set_ylabel(RETURN_LABEL)
    over.label(axes)
    if not drawn:
        theme.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")


def _draw_column(groups: Sequence[Group], over: Over, column: str, label: str, axes: Axes) -> None:
    drawn = draw_curves(
        axes, groups, over, lambda run: smoothed(run.column(column)), lambda run: run.column(column)
    )
    over.label(axes)
    axes.set_ylabel(label)
    if not drawn:
        theme.empty(axes, f"no {column} in the log")
        return
    if column == "rss_mb":
        theme.from_zero(axes)
    theme.plain_numbers(axes)


def draw_throughput(groups: Sequence[Group], over: Over, axes: Axes) -> None:
    drawn = draw_curves(axes, groups, over, _smoothed_fps, _iteration_fps)
    over.label(axes)
    axes.set_ylabel("steps/s")
    if not drawn:
        theme.empty(axes, "too few iterations with a wall_time")
        return
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


def draw_evaluations(groups: Sequence[Group], over: Over, axes: Axes, *, dash_first: bool = False) -> None:
    """Procgen's picture of generalization: the same policy on training and on unseen levels."""
    for (column, name), line, marker in zip(EVALUATIONS.items(), ("-", ":"), ("o", "s"), strict=True):
        face = None if line == "-" else theme.BACKGROUND
        style: Any = {"linestyle": line, "marker": marker, "markersize": 4, "markerfacecolor": face}
        dash_baseline = dash_first and line == "-"
        values = partial(Run.column, name=column)
        if draw_curves(axes, groups, over, values, _nothing, dash_first=dash_baseline, **style):
            axes.plot([], [], color=theme.TEXT, label=name, **style)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(loc="best")
    axes.set_ylabel("Return of evaluations")
    over.label(axes)


def _nothing(run: Run) -> np.ndarray:
    return np.full(len(run), np.nan)


# --- phases -------------------------------------------------------------------------------------------------


def phase_panel(groups: Sequence[Group], over: Over) -> Panel:
    """Over the course of a single run; bars for several runs."""
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return Panel("phases", "Where the time goes (%)", partial(_draw_phase_shares, groups[0].first, over))
    costs = [(group.label, phase_cost(group.runs)) for group in groups]
    return Panel("phases", "Where the time goes", partial(draw_phase_bars, costs))


def _draw_phase_shares(run: Run, over: Over, axes: Axes) -> None:
    phases = phase_seconds(run)
    total = np.maximum(run.iteration_seconds(), 1e-9)
    shares = [100 * smoothed(phases[name] / total) for name in PHASES]
    x = over.of(run)
    if len(x) == 1:
        x, shares = np.array([0.0, x[0]]), [np.repeat(share, 2) for share in shares]
    drawn = [index for index, share in enumerate(shares) if np.nanmax(share, initial=0) > 0.2] or [0]
    names, grays = zip(*(list(PHASES.values())[index] for index in drawn), strict=True)
    axes.stackplot(x, *(shares[index] for index in drawn), colors=grays, labels=names)
    over.label(axes)
    axes.set(ylim=(0, 100), ylabel="% of the time")
    axes.margins(x=0)
    theme.legend_below(axes)


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
    theme.legend_below(axes)
