"""The pictures of a comparison: returns over time and steps, throughput, phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.comparison import Comparison
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW, return_curve, warm_up
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.plots import OVER_STEPS, OVER_TIME, phase_bars, positions
from parallel_ppo.reports.statistics import mean_curve, smooth, smoothing_window
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import number

Drawing = Callable[[Axes, Theme], None]


def panels(groups: Sequence[Group], comparison: Comparison) -> list[tuple[str, Drawing]]:
    """What each panel shows, and how it is drawn."""
    scale, unit = themes.time_unit(max(float(run.wall_time[-1]) for group in groups for run in group.runs))
    costs = [(result.label, result.seconds_per_1000_steps) for result in comparison.groups]

    def over_time(axes: Axes, theme: Theme) -> None:
        _draw_returns(axes, groups, over=OVER_TIME, scale=scale, theme=theme)
        axes.set(title="Return over wall time", xlabel=f"wall time ({unit})")

    def over_steps(axes: Axes, theme: Theme) -> None:
        themes.steps_axis(axes)  # first: a panel without a curve takes its ticks away
        _draw_returns(axes, groups, over=OVER_STEPS, scale=1.0, theme=theme)
        axes.set_title("Return over steps")

    def throughput(axes: Axes, theme: Theme) -> None:
        _draw_throughput(axes, groups, comparison, scale=scale, theme=theme)
        axes.set(title="Throughput, end to end", xlabel=f"wall time ({unit})", ylabel="steps per second")

    def phases(axes: Axes, theme: Theme) -> None:
        axes.set_title("Where the time goes")
        phase_bars(axes, costs, theme=theme)

    drawings = over_time, over_steps, throughput, phases
    names = "Return over wall time", "Return over steps", "Throughput", "Where the time goes"
    return list(zip(names, drawings, strict=True))


def legend_of(comparison: Comparison, theme: Theme) -> list[tuple[str, str]]:
    return [
        (
            f"{comparison.title(result)}: {number(result.throughput.value)} steps/s",
            themes.color_of(theme, index),
        )
        for index, result in enumerate(comparison.groups)
    ]


def _draw_returns(axes: Axes, groups: Sequence[Group], *, over: str, scale: float, theme: Theme) -> None:
    """The baseline is dashed: over steps it lies exactly under a bit-identical run."""
    drawn = False
    for index, group in reversed(list(enumerate(groups))):
        color = themes.color_of(theme, index)
        x, curves = [positions(run, over) for run in group.runs], [return_curve(run) for run in group.runs]
        if len(group.runs) > 1:
            for position, values in zip(x, curves, strict=True):
                axes.plot(position / scale, values, color=color, alpha=0.3, linewidth=0.8)
        mean = mean_curve(x, curves)
        drawn = drawn or len(mean[0]) > 0
        themes.line(axes, mean, color=color, scale=scale, dashed=index == 0)
    if drawn:
        axes.set(xlim=(0, None), ylabel=f"mean of the last {RETURN_WINDOW} episodes")
    else:
        themes.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")


def _draw_throughput(
    axes: Axes, groups: Sequence[Group], comparison: Comparison, *, scale: float, theme: Theme
) -> None:
    for index, (group, result) in enumerate(zip(groups, comparison.groups, strict=True)):
        color = themes.color_of(theme, index)
        for run in group.runs:
            skip = warm_up(run)
            fps = (run.iteration_steps() / np.maximum(run.iteration_seconds(), 1e-9))[skip:]
            time = run.wall_time[skip:] / scale
            marker = "o" if len(time) == 1 else None
            axes.plot(time, fps, color=color, alpha=0.35, linewidth=0.8)
            axes.plot(
                time, smooth(fps, smoothing_window(len(fps))), color=color, linewidth=1.8, marker=marker
            )
        axes.axhline(result.throughput.value, color=color, linestyle=":", linewidth=1.2)
    themes.from_zero(axes)
    themes.plain_numbers(axes)
    axes.set_xlim(left=0)
