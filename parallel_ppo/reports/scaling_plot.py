"""The four panels of a scaling benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.scaling import Extrapolation, SizeSummary
from parallel_ppo.reports.theme import PHASE_NAMES, PHASES, Theme


def scaling_figure(
    summaries: Sequence[SizeSummary],
    extrapolation: Sequence[Extrapolation],
    *,
    title: str,
    subtitle: str,
    theme: Theme = themes.LIGHT,
) -> Figure:
    with themes.drawing(theme):
        header, body, figure = themes.headed_figure(13, 9, title=title)
        header.text(0.012, 0.05, subtitle, ha="left", va="bottom", fontsize=9.5, color=theme.muted)
        panels = body.subplots(2, 2)
        _throughput(panels[0, 0], summaries, theme)
        _speedup(panels[0, 1], summaries, extrapolation, theme)
        _efficiency(panels[1, 0], summaries, theme)
        _phases(panels[1, 1], summaries, theme)
    return figure


def _column(summaries: Sequence[SizeSummary], name: str) -> np.ndarray:
    return np.array([getattr(summary, name) for summary in summaries], dtype=float)


def _category_axis(axes: Axes, summaries: Sequence[SizeSummary]) -> np.ndarray:
    places = np.arange(len(summaries))
    labels = [f"{summary.world_size}" + ("" if summary.has_cores else "\n(> cores)") for summary in summaries]
    axes.set_xticks(places, labels)
    axes.set_xlabel("workers")
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.6, len(summaries) - 0.4)
    return places


def _colors(summaries: Sequence[SizeSummary], theme: Theme) -> list[str]:
    return [theme.series[1] if summary.has_cores else theme.phases[3] for summary in summaries]


def _throughput(axes: Axes, summaries: Sequence[SizeSummary], theme: Theme) -> None:
    axes.set(title="Throughput, end to end", ylabel="steps per second")
    places = _category_axis(axes, summaries)
    fps, low, high = (_column(summaries, name) for name in ("fps", "fps_low", "fps_high"))
    axes.bar(places, fps, width=0.5, color=_colors(summaries, theme))
    axes.errorbar(
        places,
        fps,
        yerr=np.stack([fps - low, high - fps]),
        fmt="none",
        ecolor=theme.text,
        capsize=5,
        linewidth=1.3,
    )
    for place, value, top in zip(places, fps, high, strict=True):
        axes.annotate(
            f"{value:,.0f}",
            (place, top),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            weight="bold",
        )
    predicted = _column(summaries, "predicted_fps")
    if len(predicted) > 1:
        axes.scatter(
            places[1:], predicted[1:], marker="D", s=44, color=theme.series[0], edgecolor=theme.background,
            zorder=4, label=f"predicted from {summaries[0].world_size} worker(s)",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
    axes.set_ylim(0, 1.25 * float(np.nanmax(np.concatenate([high, predicted]))))


def _speedup(
    axes: Axes, summaries: Sequence[SizeSummary], extrapolation: Sequence[Extrapolation], theme: Theme
) -> None:
    axes.set(title="Speedup against ideal", xlabel="workers", ylabel="speedup")
    sizes = _column(summaries, "world_size")
    base, end = float(sizes[0]), max([float(sizes[-1]), *(float(row.workers) for row in extrapolation)])
    axes.plot([base, end], [1, end / base], color=theme.muted, linestyle=":", linewidth=1.5, label="ideal")
    _draw_extrapolation(axes, extrapolation, theme, measured_to=float(sizes[-1]))
    speedup, low, high = (_column(summaries, name) for name in ("speedup", "speedup_low", "speedup_high"))
    errors = np.nan_to_num(np.stack([np.maximum(0, speedup - low), np.maximum(0, high - speedup)]))
    style: Any = {"color": theme.series[1], "marker": "o", "linewidth": 2.2, "capsize": 4, "zorder": 4}
    axes.errorbar(sizes, speedup, yerr=errors, label="measured", **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [2**power for power in range(int(np.ceil(np.log2(max(end, 2)))) + 1) if 2**power >= base]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}x")
    axes.set_xlim(base / 1.15, end * 1.2)
    axes.minorticks_off()
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


def _draw_extrapolation(
    axes: Axes, rows: Sequence[Extrapolation], theme: Theme, *, measured_to: float
) -> None:
    """Dashed, on shaded ground that says it was not measured."""
    workers = np.array([row.workers for row in rows], dtype=float)
    lines = (("work enough\nfor all", "fps", "--"), ("this shape", "fps_this_shape", "-."))
    for (name, field, style), color in zip(lines, (theme.series[0], theme.series[3]), strict=True):
        values = np.array([getattr(row, field) for row in rows]) / rows[0].fps
        axes.plot(
            workers, values, color=color, linestyle=style, linewidth=1.8, label=f"extrapolated,\n{name}"
        )
    start, end = 1.15 * measured_to, 1.2 * workers[-1]
    if start < end:
        axes.axvspan(start, end, color=theme.grid, alpha=0.45, linewidth=0)
        place: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "color": theme.muted}
        axes.text(float(np.sqrt(start * end)), 0.04, "not measured", **place)


def _efficiency(axes: Axes, summaries: Sequence[SizeSummary], theme: Theme) -> None:
    axes.set(title="Efficiency per worker", ylabel="% of ideal")
    places = _category_axis(axes, summaries)
    values = 100 * _column(summaries, "efficiency")
    axes.bar(places, values, width=0.5, color=_colors(summaries, theme))
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            f"{value:.0f}%", (place, value), xytext=(0, -6), textcoords="offset points",
            ha="center", va="top", weight="bold", color=theme.background,
        )  # fmt: skip
    axes.axhline(100, color=theme.muted, linestyle=":", linewidth=1.5)
    axes.set_ylim(0, max(115.0, 1.12 * float(values.max())))


def _phases(axes: Axes, summaries: Sequence[SizeSummary], theme: Theme) -> None:
    axes.set(title="Where the time goes", ylabel="% of an iteration")
    places = _category_axis(axes, summaries)
    total = _column(summaries, "t_iter")
    bottom = np.zeros(len(summaries))
    for phase, color in zip(PHASES, theme.phases, strict=True):
        share = 100 * np.nan_to_num(_column(summaries, f"t_{phase}")) / total
        if share.max() < 1:
            continue
        axes.bar(places, share, bottom=bottom, width=0.5, color=color, label=PHASE_NAMES[phase])
        for place, start, value in zip(places, bottom, share, strict=True):
            if value > 6:
                axes.text(
                    place,
                    start + value / 2,
                    f"{value:.0f}%",
                    ha="center",
                    va="center",
                    color="#14181c",
                    fontsize=9,
                )
        bottom += share
    serial = 100 * _column(summaries, "t_coordinator") / total
    labels = [f"{item.world_size}\n{share:.1f}%" for item, share in zip(summaries, serial, strict=True)]
    axes.set_xticks(places, labels)
    axes.set_xlabel("workers, and under them the share of the coordinator alone")
    axes.set_ylim(0, 104)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1.0), ncols=5, fontsize=9, columnspacing=1.0, handlelength=1.2
    )
