"""The curves of one or several runs: what was learned, how fast, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.curves import (
    RETURN_WINDOW,
    iteration_returns,
    phase_cost,
    phase_seconds,
    return_curve,
)
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import mean_curve, smooth, smoothing_window
from parallel_ppo.reports.theme import PHASE_NAMES, PHASES, Theme

OVER_STEPS = "steps"
OVER_TIME = "time"


@dataclass(frozen=True)
class Panel:
    column: str
    title: str
    unit: str = ""


PANELS = (
    Panel("episode_return_mean", "Episode return"),
    Panel("episode_length_mean", "Episode length", "steps"),
    Panel("entropy", "Policy entropy", "nats"),
    Panel("policy_loss", "Policy loss"),
    Panel("value_loss", "Value loss"),
    Panel("approx_kl", "KL of the update", "nats"),
    Panel("fps", "Throughput, end to end", "steps/s"),
    Panel("rss_mb", "Memory, all processes", "MB"),
)


CURIOSITY_PANELS = (
    Panel("intrinsic_reward", "Intrinsic reward, before scaling"),
    Panel("intrinsic_reward_scaled", "Intrinsic reward, scaled"),
    Panel("intrinsic_return", "Intrinsic return, before scaling"),
    Panel("predictor_loss", "Loss of the predictor"),
    Panel("inverse_loss", "Loss of the inverse model"),
    Panel("forward_loss", "Loss of the forward model"),
    Panel("intrinsic_explained_variance", "Explained variance of the intrinsic value"),
    Panel("episodic_memory_size", "Episodic memory", "embeddings"),
)


def panels_of(groups: Sequence[Group]) -> tuple[Panel, ...]:
    """Curiosity's are drawn where a run has it."""
    written = {name for group in groups for run in group.runs for name in run.columns}
    return PANELS + tuple(panel for panel in CURIOSITY_PANELS if panel.column in written)


def curves_figure(
    groups: Sequence[Group], *, over: str, smoothing: int | None, theme: Theme = themes.LIGHT
) -> Figure:
    """All panels over steps or over wall time."""
    with themes.drawing(theme):
        legend = [(group.label, _color(theme, index)) for index, group in enumerate(groups)]
        chosen = panels_of(groups)
        rows = -(-(len(chosen) + 1) // 3)
        _, body, figure = themes.headed_figure(15, 1 + 3 * rows, title=_title(groups), legend=legend)
        panels = body.subplots(rows, 3).ravel()
        for axes in panels[len(chosen) : -1]:
            axes.remove()
        scale, unit = _scale(groups, over)
        for axes, panel in zip(panels, chosen, strict=False):
            _draw_panel(axes, panel, groups, over=over, smoothing=smoothing, scale=scale, theme=theme)
            _label_x(axes, over, unit)
        _draw_phases(panels[-1], groups, over=over, smoothing=smoothing, scale=scale, theme=theme)
        if len(groups) == 1:
            _label_x(panels[-1], over, unit)
        body.supxlabel(_lines(groups, smoothing), x=0.012, ha="left", fontsize=9, color=theme.muted)
    return figure


def _lines(groups: Sequence[Group], smoothing: int | None) -> str:
    """What is thick, thin and shaded."""
    windows = {smoothing or smoothing_window(len(run)) for group in groups for run in group.runs}
    if windows == {1}:
        text = f"Thick lines: each iteration (returns: mean of the last {RETURN_WINDOW} episodes)"
        thin = "returns of each iteration"
    else:
        over, thin = " or ".join(map(str, sorted(windows)[-2:])), "each iteration"
        text = (
            f"Thick lines: mean of the last {over} iterations (returns: of the last {RETURN_WINDOW} episodes)"
        )
    if any(len(group.runs) > 1 for group in groups):
        text += " and over seeds, with 95 % bands"
        thin = "each iteration"
    return f"{text}. Thin lines: {thin}."


def _color(theme: Theme, index: int) -> str:
    """A run on its own is blue; orange is the baseline of a comparison."""
    return themes.color_of(theme, index + 1)


def positions(run: Run, over: str) -> np.ndarray:
    return run.wall_time if over == OVER_TIME else run.steps


def _title(groups: Sequence[Group]) -> str:
    games = sorted({short_env(run.env_id) for group in groups for run in group.runs} - {"unknown"})
    name = groups[0].label if len(groups) == 1 else f"{len(groups)} runs"
    return name if games in ([], [name]) else f"{', '.join(games)}: {name}"


def _scale(groups: Sequence[Group], over: str) -> tuple[float, str]:
    if over == OVER_STEPS:
        return 1.0, ""
    ends = [run.wall_time[np.isfinite(run.wall_time)] for group in groups for run in group.runs]
    return themes.time_unit(max((float(end[-1]) for end in ends if end.size), default=0.0))


def _label_x(axes: Axes, over: str, unit: str) -> None:
    if over == OVER_STEPS:
        themes.steps_axis(axes)
    else:
        axes.set_xlabel(f"wall time ({unit})")
    if axes.lines:
        axes.set_xlim(left=0)


def _draw_panel(
    axes: Axes,
    panel: Panel,
    groups: Sequence[Group],
    *,
    over: str,
    smoothing: int | None,
    scale: float,
    theme: Theme,
) -> None:
    axes.set_title(panel.title + (f" ({panel.unit})" if panel.unit else ""))
    for index, group in enumerate(groups):
        color = _color(theme, index)
        x = [positions(run, over) for run in group.runs]
        raw = [_raw(run, panel) for run in group.runs]
        for position, values in zip(x, raw, strict=True):
            axes.plot(position / scale, values, color=color, alpha=0.35, linewidth=0.8)
        smoothed = [_smoothed(run, panel, smoothing) for run in group.runs]
        themes.line(axes, mean_curve(x, smoothed), color=color, scale=scale)
    if not any(np.isfinite(run.column(panel.column)).any() for group in groups for run in group.runs):
        themes.empty(axes, f"no {panel.column} in the log")
        return
    if panel.unit in ("MB", "steps/s"):
        themes.from_zero(axes)
    themes.plain_numbers(axes)


def _raw(run: Run, panel: Panel) -> np.ndarray:
    return iteration_returns(run) if panel.column == "episode_return_mean" else run.column(panel.column)


def _smoothed(run: Run, panel: Panel, smoothing: int | None) -> np.ndarray:
    """Returns are smoothed over episodes rather than iterations, so that long episodes do not count less."""
    if panel.column == "episode_return_mean":
        return return_curve(run)
    smoothed = smooth(run.column(panel.column), smoothing or smoothing_window(len(run)))
    return np.where(np.isfinite(run.column(panel.column)), smoothed, np.nan)


def _draw_phases(
    axes: Axes, groups: Sequence[Group], *, over: str, smoothing: int | None, scale: float, theme: Theme
) -> None:
    if len(groups) > 1:
        axes.set_title("Where the time goes")
        phase_bars(axes, [(group.label, phase_cost(group.runs)) for group in groups], theme=theme)
        return
    run = groups[0].first
    axes.set_title("Where the time goes (%)")
    phases = phase_seconds(run)
    total = np.maximum(run.iteration_seconds(), 1e-9)
    shares = [100 * smooth(phases[name] / total, smoothing or smoothing_window(len(run))) for name in PHASES]
    x = positions(run, over) / scale
    if len(x) == 1:
        x, shares = np.array([0.0, x[0]]), [np.repeat(share, 2) for share in shares]
    drawn = [index for index, share in enumerate(shares) if np.nanmax(share, initial=0) > 0.2] or [0]
    colors, names = zip(*((theme.phases[index], PHASE_NAMES[PHASES[index]]) for index in drawn), strict=True)
    axes.stackplot(x, *(shares[index] for index in drawn), colors=colors, labels=names)
    axes.set_ylim(0, 100)
    axes.margins(x=0)
    _phase_legend(axes)


def phase_bars(axes: Axes, rows: Sequence[tuple[str, dict[str, float]]], *, theme: Theme) -> None:
    """One bar per group, as long as its time per step, split by phase."""
    places = np.arange(len(rows))[::-1]
    left = np.zeros(len(rows))
    totals = np.array([sum(cost.values()) for _, cost in rows])
    for name, color in zip(PHASES, theme.phases, strict=True):
        width = np.array([cost[name] for _, cost in rows])
        if not width.max(initial=0) > 0.002 * totals.max(initial=0):
            continue
        axes.barh(places, width, left=left, color=color, height=0.5, label=PHASE_NAMES[name])
        for place, start, value, total in zip(places, left, width, totals, strict=True):
            if value > 0.09 * totals.max():
                text = f"{100 * value / total:.0f}%"
                axes.text(
                    start + value / 2, place, text, ha="center", va="center", color="#14181c", fontsize=9
                )
        left += width
    for place, (label, _) in zip(places, rows, strict=True):
        axes.annotate(
            themes.short(label), (0, place + 0.29), xytext=(2, 3), textcoords="offset points", fontsize=9.5
        )
    axes.set_yticks([])
    axes.set_xlabel("seconds per 1,000 environment steps")
    axes.grid(axis="y", visible=False)
    axes.set_ylim(-0.5, len(rows) - 0.05)
    _phase_legend(axes)


def _phase_legend(axes: Axes) -> None:
    """Beside the data."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9, handlelength=1.0, reverse=True)
