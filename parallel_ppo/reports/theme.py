"""How pictures look: one light and one dark theme, axes with units, figures as bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from parallel_ppo.storage.files import write_atomically

LONGEST_LABEL = 44
Legend = Sequence[tuple[str, str]]  # labels and their colours
PHASES = ("rollout", "learn", "sync", "other")
PHASE_NAMES = {"rollout": "collect", "learn": "update", "sync": "exchange", "other": "other"}


@dataclass(frozen=True)
class Theme:
    name: str
    background: str
    text: str
    muted: str
    grid: str
    series: tuple[str, ...]
    phases: tuple[str, ...]


LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1c2127",
    muted="#5c6670",
    grid="#e3e7eb",
    series=("#d9772b", "#1f6fb5", "#2a9461", "#8a5bb8", "#c2426b", "#7a6a53"),
    phases=("#4c8fcc", "#e5a13d", "#b8606f", "#aab2bb"),
)
DARK = Theme(
    name="dark",
    background="#15191e",
    text="#e7ebef",
    muted="#9aa5b1",
    grid="#2b323a",
    series=("#f29a55", "#62aee8", "#5cc492", "#b592de", "#ea7fa0", "#bfae93"),
    phases=("#5a9ddb", "#e8ad55", "#d08090", "#6b7580"),
)


@contextmanager
def drawing(theme: Theme) -> Iterator[None]:
    """Figures made inside look like `theme`."""
    settings: Any = {
        "figure.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "text.color": theme.text,
        "axes.labelcolor": theme.muted,
        "axes.titlecolor": theme.text,
        "axes.edgecolor": theme.grid,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.grid,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "font.size": 10,
        "font.family": "DejaVu Sans",
        "legend.frameon": False,
        "svg.hashsalt": "parallel_ppo",
        "text.parse_math": False,  # a label is text, whatever dollars it has
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.04)
    return Figure(figsize=(width, height), layout=layout)


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a span of `seconds` reads best, and what to divide by."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    if seconds >= 180:
        return 60.0, "minutes"
    return 1.0, "seconds"


def plain_numbers(axes: Axes) -> None:
    """Whole tick labels instead of an offset, and some air around a curve that does not move."""
    low, high = axes.get_ylim()
    if high - low < 1e-4 * max(abs(low), abs(high)):
        middle = (low + high) / 2
        axes.set_ylim(middle - 0.1 * abs(middle), middle + 0.1 * abs(middle))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.6g}")


def from_zero(axes: Axes) -> None:
    """The whole height, and some air above the highest point."""
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def steps_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("environment steps")


def line(
    axes: Axes,
    curve: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    *,
    color: str,
    scale: float = 1.0,
    dashed: bool = False,
) -> None:
    """A mean with its interval; a curve of one point is drawn as a point."""
    x, mean, low, high = curve
    if not len(x):
        return
    style: Any = {"linestyle": (0, (4, 3)), "linewidth": 2.4} if dashed else {"linewidth": 2}
    axes.plot(x / scale, mean, color=color, marker="o" if len(x) == 1 else None, **style)
    if np.isfinite(low).any():
        axes.fill_between(x / scale, low, high, color=color, alpha=0.22, linewidth=0)


def empty(axes: Axes, why: str) -> None:
    """Say in the panel why it shows nothing."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", style="italic")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


def headed_figure(
    width: float, height: float, *, title: str, legend: Legend = ()
) -> tuple[SubFigure, SubFigure, Figure]:
    """A figure with a strip on top for the title and under it one legend for all panels; both may take
    several lines."""
    lines = textwrap.wrap(title, int(7.5 * width)) or [""]
    columns = _legend_columns(width, legend)
    rows = -(-len(legend) // columns) if legend else 1
    strip = 0.25 + 0.3 * len(lines) + 0.24 * rows
    figure = new_figure(width, height + strip)
    header, body = np.asarray(figure.subfigures(2, 1, height_ratios=[strip, height]))
    header.text(0.012, 1 - 0.1 / strip, "\n".join(lines), ha="left", va="top", fontsize=15, weight="bold")
    if legend:
        place = {"loc": "lower left", "bbox_to_anchor": (0.006, 0), "borderaxespad": 0.1}
        _draw_legend(header, legend, ncols=columns, **place)
    return header, body, figure


def panel_figure(draw: Callable[[Axes, Theme], None], theme: Theme, *, legend: Legend) -> Figure:
    """One panel with its legend above it, readable on a narrow page."""
    with drawing(theme):
        columns = _legend_columns(5.4, legend)
        figure = new_figure(5.4, 3.7 + 0.24 * -(-len(legend) // columns))
        draw(figure.subplots(), theme)
        _draw_legend(figure, legend, loc="outside upper left", ncols=columns)
    return figure


def _legend_columns(width: float, legend: Legend) -> int:
    longest = max((len(short(label)) for label, _ in legend), default=1)
    return max(1, min(len(legend), int(width / (0.5 + 0.085 * longest))))


def _draw_legend(place: Figure | SubFigure, legend: Legend, **options: Any) -> None:
    """The texts are set afterwards: matplotlib leaves labels out that begin with an underscore."""
    handles = [Line2D([], [], color=color, linewidth=3) for _, color in legend]
    drawn = place.legend(handles, ["-"] * len(legend), **options)
    for text, (label, _) in zip(drawn.get_texts(), legend, strict=True):
        text.set_text(short(label))


def short(label: str) -> str:
    return (
        label
        if len(label) <= LONGEST_LABEL
        else f"{label[: LONGEST_LABEL // 2 - 1]}…{label[-LONGEST_LABEL // 2 :]}"
    )


def color_of(theme: Theme, index: int) -> str:
    return theme.series[index % len(theme.series)]


def figure_bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=140, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> Path:
    write_atomically(path, figure_bytes(figure, path.suffix.lstrip(".")))
    return path
