"""How pictures look: one light and one dark theme, axes with units, figures as bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, MaxNLocator

PHASES = ("rollout", "learn", "sync", "other")
PHASE_NAMES = {"rollout": "collect", "learn": "learn", "sync": "synchronise", "other": "other"}


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
THEMES = (LIGHT, DARK)


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


def steps_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("environment steps")


def line(
    axes: Axes,
    curve: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    *,
    color: str,
    label: str | None = None,
    scale: float = 1.0,
) -> None:
    """A mean with its interval; a curve of one point is drawn as a point."""
    x, mean, low, high = curve
    if not len(x):
        return
    axes.plot(x / scale, mean, color=color, linewidth=2, label=label, marker="o" if len(x) == 1 else None)
    if np.isfinite(low).any():
        axes.fill_between(x / scale, low, high, color=color, alpha=0.22, linewidth=0)


def empty(axes: Axes, why: str) -> None:
    """Say in the panel why it shows nothing."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", style="italic")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


def headed_figure(width: float, height: float, *, title: str) -> tuple[SubFigure, SubFigure, Figure]:
    """A figure with a strip on top that holds the title and, under it, room for a legend."""
    strip = 0.85 if title else 0.4
    figure = new_figure(width, height + strip)
    header, body = np.asarray(figure.subfigures(2, 1, height_ratios=[strip, height]))
    if title:
        header.text(0.012, 0.88, title, ha="left", va="top", fontsize=15, weight="bold")
    return header, body, figure


def legend_of(header: SubFigure, axes: Axes, *, columns: int = 6) -> None:
    """One legend for all panels, above them."""
    handles, labels = axes.get_legend_handles_labels()
    header.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0.006, 0),
        ncols=max(1, min(columns, len(labels))),
        borderaxespad=0.1,
    )


def figure_bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=140, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> Path:
    path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))
    return path
