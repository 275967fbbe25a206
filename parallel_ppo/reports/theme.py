"""The look of pictures: colors, axes with units, and panels as one sheet (PNG), inline SVG or single PDF files.

The colors of the series are those of Okabe and Ito, which color-blind readers can tell apart. A color of the
series always names a run or a setting; phases of an iteration are grays.
"""

from __future__ import annotations

import io
import re
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
from matplotlib.transforms import offset_copy

from parallel_ppo.storage.files import write_atomically

BACKGROUND, TEXT, MUTED, GRID = "#ffffff", "#1c2127", "#5c6670", "#e3e7eb"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PHASES = {  # of an iteration: name and gray
    "rollout": ("collect", "#a9b3bd"),
    "learn": ("update", "#d3d9df"),
    "sync": ("exchange", "#7f8b97"),
    "other": ("other", "#eceff2"),
}
LONGEST_LABEL = 44
PAPER_WIDTH = 3.3  # inches: one column of a paper
STYLE: Any = {
    "text.color": TEXT,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": TEXT,
    "axes.edgecolor": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
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
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "parallel_ppo",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # publishers refuse type 3
    "text.parse_math": False,  # a label is text, whatever dollars it has
}
PAPER_STYLE: Any = STYLE | {
    "font.size": 8,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "axes.labelcolor": TEXT,
}
Legend = Sequence[tuple[str, str]]  # labels and their colors


@dataclass(frozen=True)
class Panel:
    """One picture. `name` is that of its file."""

    name: str
    title: str
    draw: Callable[[Axes], None]
    legend: Legend = ()


@contextmanager
def drawing(style: Any = STYLE) -> Iterator[None]:
    with matplotlib.rc_context(style):
        yield


def new_figure(width: float, height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.04)
    return Figure(figsize=(width, height), layout=layout)


def series_color(index: int) -> str:
    return SERIES[index % len(SERIES)]


# --- panels -------------------------------------------------------------------------------------------------


def sheet(panels: Sequence[Panel], *, title: str, note: str = "", columns: int = 2) -> Figure:
    """All panels side by side, under one title and one legend."""
    legend = list(dict.fromkeys(entry for panel in panels for entry in panel.legend))
    rows = -(-len(panels) // columns)
    width, height = {2: (13.0, 4.3), 3: (15.0, 3.3)}[columns]
    with drawing():
        body, figure = headed_figure(width, height * rows, title=title, legend=legend)
        every = np.asarray(body.subplots(rows, columns)).ravel()
        for axes, panel in zip(every, panels, strict=False):
            panel.draw(axes)
            axes.set_title(panel.title)
            if axes.get_ylabel() in panel.title:
                axes.set_ylabel("")
        for axes in every[len(panels) :]:
            axes.remove()
        small = "\n".join(textwrap.fill(line, int(13 * width)) for line in note.splitlines())
        body.supxlabel(small, x=0.012, ha="left", fontsize=9, color=MUTED)
    return figure


def panel_figure(panel: Panel, *, width: float = 5.4, height: float = 3.7) -> Figure:
    """Without a title, which is the caption in a page or a paper."""
    columns = _legend_columns(width * 10 / matplotlib.rcParams["font.size"], panel.legend)
    figure = new_figure(width, height + 0.2 * -(-len(panel.legend) // columns))
    panel.draw(figure.subplots())
    _draw_legend(figure, panel.legend, loc="outside upper left", ncols=columns)
    return figure


def inline_svg(panel: Panel, index: int) -> str:
    """An element for a page, which decides the colors; `index` keeps its names apart from other pictures'."""
    with drawing():
        svg = to_bytes(panel_figure(panel), "svg", transparent=True).decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\1picture{index}-", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    for variable, color in css_variables().items():
        svg = svg.replace(color, f"var({variable})")
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1)


def css_variables() -> dict[str, str]:
    names = {"background": BACKGROUND, "text": TEXT, "muted": MUTED, "line": GRID}
    names |= {f"series-{index}": color for index, color in enumerate(SERIES)}
    names |= {f"phase-{index}": color for index, (_, color) in enumerate(PHASES.values())}
    return {f"--{name}": color for name, color in names.items()}


def save_pdfs(panels: Sequence[Panel], directory: Path) -> list[Path]:
    """For a paper: one file for each panel, one column wide, 8 points, without a title."""
    written = []
    for panel in panels:
        with drawing(PAPER_STYLE):
            figure = panel_figure(panel, width=PAPER_WIDTH, height=2.3)
            written.append(save(figure, directory / f"{panel.name}.pdf"))
    return written


def headed_figure(
    width: float, height: float, *, title: str, legend: Legend = ()
) -> tuple[SubFigure, Figure]:
    """A figure with a strip on top for the title and under it one legend for all panels."""
    lines = textwrap.wrap(title, int(7.5 * width)) or [""]
    columns = _legend_columns(width, legend)
    rows = -(-len(legend) // columns) if legend else 0
    strip = 0.25 + 0.3 * len(lines) + 0.24 * rows
    figure = new_figure(width, height + strip)
    header, body = np.asarray(figure.subfigures(2, 1, height_ratios=[strip, height]))
    header.text(0.012, 1 - 0.1 / strip, "\n".join(lines), ha="left", va="top", fontsize=15, weight="bold")
    _draw_legend(
        header, legend, loc="lower left", bbox_to_anchor=(0.006, 0), borderaxespad=0.1, ncols=columns
    )
    return body, figure


def _legend_columns(width: float, legend: Legend) -> int:
    longest = max((len(short(label)) for label, _ in legend), default=1)
    return max(1, min(len(legend), int(width / (0.5 + 0.085 * longest))))


def _draw_legend(place: Figure | SubFigure, legend: Legend, **options: Any) -> None:
    """The texts are set afterwards: matplotlib leaves out labels that begin with an underscore."""
    if not legend:
        return
    handles = [Line2D([], [], color=color, linewidth=3) for _, color in legend]
    drawn = place.legend(handles, ["-"] * len(legend), **options)
    for text, (label, _) in zip(drawn.get_texts(), legend, strict=True):
        text.set_text(short(label))


def short(label: str) -> str:
    half = LONGEST_LABEL // 2
    return label if len(label) <= LONGEST_LABEL else f"{label[: half - 1]}…{label[-half:]}"


def save(figure: Figure, path: Path) -> Path:
    write_atomically(path, to_bytes(figure, path.suffix.lstrip(".")))
    return path


def to_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)  # equal runs, equal files
    figure.savefig(buffer, format=kind, dpi=140, metadata=date, **options)
    return buffer.getvalue()


# --- axes ---------------------------------------------------------------------------------------------------


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a span of `seconds` reads best, and what to divide by."""
    for size, name, least in ((3600.0, "hours", 7200), (60.0, "minutes", 180), (1.0, "seconds", 1)):
        if seconds >= least:
            return size, name
    return 1e-3, "milliseconds"


def plain_numbers(axes: Axes) -> None:
    """Whole tick labels instead of an offset, and some air around a curve that does not move."""
    low, high = axes.get_ylim()
    if high - low < 1e-4 * max(abs(low), abs(high)):
        middle = (low + high) / 2
        axes.set_ylim(middle - 0.1 * abs(middle), middle + 0.1 * abs(middle))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.6g}")


def from_zero(axes: Axes) -> None:
    """The whole height, and some air above the highest point."""
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), 1.06 * high)


def steps_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("environment steps")


def legend_below(axes: Axes, *content: Any) -> None:
    """Covers no data, and leaves the whole width to the axes."""
    down = -3.2 * matplotlib.rcParams["font.size"]
    place = offset_copy(axes.transAxes, fig=axes.figure, y=down, units="points")  # type: ignore[arg-type]
    axes.legend(
        *content, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, ncols=4, handlelength=1.2
    )


def empty(axes: Axes, why: str) -> None:
    """A panel without data says why."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", style="italic")
    axes.grid(False)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
