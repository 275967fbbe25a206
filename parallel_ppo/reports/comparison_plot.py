"""The four panels of a comparison: returns over time and steps, throughput, where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.compare import Comparison
from parallel_ppo.reports.curves import return_curve, warm_up
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.plots import OVER_STEPS, OVER_TIME, phase_bars, positions
from parallel_ppo.reports.statistics import mean_curve, smooth, smoothing_window
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import headline, subtitle

RETURN_LABEL = "mean of the last 100 episodes"


def comparison_figure(
    groups: Sequence[Group], comparison: Comparison, *, theme: Theme = themes.LIGHT, titled: bool = True
) -> Figure:
    """On a page that has its own title the figure goes without (`titled=False`)."""
    with themes.drawing(theme):
        header, body, figure = themes.headed_figure(13, 8.6, title=headline(comparison) if titled else "")
        panels = body.subplots(2, 2)
        longest = max(float(run.wall_time[-1]) for group in groups for run in group.runs)
        scale, unit = themes.time_unit(longest)
        _draw_returns(panels[0, 0], groups, over=OVER_TIME, scale=scale, theme=theme)
        panels[0, 0].set(title="Return over wall time", xlabel=f"wall time ({unit})", ylabel=RETURN_LABEL)
        _draw_returns(panels[0, 1], groups, over=OVER_STEPS, scale=1.0, theme=theme)
        panels[0, 1].set(title="Return over steps", ylabel=RETURN_LABEL)
        themes.steps_axis(panels[0, 1])
        _draw_throughput(panels[1, 0], groups, comparison, scale=scale, theme=theme)
        panels[1, 0].set(
            title="Throughput, end to end", xlabel=f"wall time ({unit})", ylabel="steps per second"
        )
        panels[1, 1].set_title("Where the time goes")
        rows = [(result.label, result.seconds_per_1000_steps) for result in comparison.groups]
        phase_bars(panels[1, 1], rows, theme=theme)
        if titled:
            body.supxlabel(subtitle(comparison), x=0.012, ha="left", fontsize=9, color=theme.muted)
        themes.legend_of(header, panels[1, 0])
    return figure


def _color(theme: Theme, index: int) -> str:
    return theme.series[index % len(theme.series)]


def _draw_returns(axes: Axes, groups: Sequence[Group], *, over: str, scale: float, theme: Theme) -> None:
    """The baseline is dashed: over steps it lies exactly under a bit-identical run."""
    drawn = False
    for index, group in reversed(list(enumerate(groups))):
        x = [positions(run, over) for run in group.runs]
        curves = [return_curve(run) for run in group.runs]
        if len(group.runs) > 1:
            for position, values in zip(x, curves, strict=True):
                axes.plot(position / scale, values, color=_color(theme, index), alpha=0.3, linewidth=0.8)
        mean = mean_curve(x, curves)
        drawn = drawn or len(mean[0]) > 0
        themes.line(axes, mean, color=_color(theme, index), scale=scale)
        if index == 0 and axes.lines:
            axes.lines[-1].set(linestyle=(0, (4, 3)), linewidth=2.4)
    if drawn:
        axes.set_xlim(left=0)
    else:
        themes.empty(axes, "no episode has finished yet")


def _draw_throughput(
    axes: Axes, groups: Sequence[Group], comparison: Comparison, *, scale: float, theme: Theme
) -> None:
    for index, (group, result) in enumerate(zip(groups, comparison.groups, strict=True)):
        color = _color(theme, index)
        for run in group.runs:
            skip = warm_up(run)
            fps = (run.iteration_steps() / np.maximum(run.iteration_seconds(), 1e-9))[skip:]
            time = run.wall_time[skip:] / scale
            axes.plot(time, fps, color=color, alpha=0.35, linewidth=0.8)
            axes.plot(
                time,
                smooth(fps, smoothing_window(len(fps))),
                color=color,
                linewidth=1.8,
                marker="o" if len(time) == 1 else None,
            )
        axes.axhline(result.throughput.value, color=color, linestyle=":", linewidth=1.2)
        axes.plot(
            [], [], color=color, linewidth=3, label=f"{group.label}: {result.throughput.value:,.0f} steps/s"
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
