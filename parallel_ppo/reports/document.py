"""A report as data: one set of cards, tables and notes, and all its renderers.

Text from run directories is untrusted. Each renderer escapes it for its own format.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from parallel_ppo.printable import printable
from parallel_ppo.reports import theme
from parallel_ppo.reports.theme import Panel
from parallel_ppo.storage.files import write_atomically

TEXT_WIDTH = 110
TEMPLATE = Path(__file__).with_name("page.html.jinja")


@dataclass(frozen=True)
class Card:
    value: str
    name: str
    detail: str = ""


class Row(NamedTuple):
    name: str
    cells: Sequence[str]
    values: Sequence[Any]  # the cells in the JSON

    @classmethod
    def of(cls, name: str, values: Iterable[Any], show: Callable[[Any], str] = str) -> Row:
        values = list(values)
        return cls(name, [show(value) for value in values], values)

    @classmethod
    def mixed(cls, name: str, *cells: tuple[Any, Callable[[Any], str]]) -> Row:
        return cls(name, [show(value) for value, show in cells], [value for value, _ in cells])


@dataclass(frozen=True)
class Table:
    """`header` begins with the heading of the names. Cells are right-aligned."""

    title: str
    header: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Document:
    headline: str
    subtitle: str
    tables: Sequence[Table]
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    footnotes: Sequence[str] = ()
    panels: Sequence[Panel] = field(default=(), compare=False)
    picture_note: str = ""
    data: Any = None  # more numbers, for files that the caller writes

    def lists(self) -> list[tuple[str, Sequence[str]]]:
        both = ("Warnings", self.warnings), ("Notes", self.notes)
        return [(name, lines) for name, lines in both if lines]


# --- terminal and text --------------------------------------------------------------------------------------


def print_document(console: Console, document: Document) -> None:
    """Cells are `Text`: square brackets and control characters in them have no effect."""
    console.print(_plain(document.headline, "bold"))
    console.print(_plain(document.subtitle, "dim"))
    for table in document.tables:
        grid = RichTable(title=_plain(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD)
        for index, name in enumerate(table.header):
            grid.add_column(_plain(name), justify="right" if index else "left", overflow="fold")
        for line in table.rows:
            grid.add_row(*map(_plain, [line.name, *line.cells]))
        console.print(grid)
    for name, lines in document.lists():
        console.print(_plain(name, "bold yellow" if name == "Warnings" else "bold"))
        for text in lines:
            console.print(_plain(f"- {text}"))
    for text in document.footnotes:
        console.print(_plain(text, "dim"))


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def as_text(document: Document) -> str:
    """The output of a terminal, without colors."""
    sink = io.StringIO()
    console = Console(file=sink, width=TEXT_WIDTH, force_terminal=False, color_system=None, emoji=False)
    print_document(console, document)
    return re.sub(r" +\n", "\n", sink.getvalue())


# --- JSON and CSV -------------------------------------------------------------------------------------------


def as_json(document: Document) -> str:
    names = ("headline", "subtitle", "warnings", "notes")
    tables = {
        table.title: {line.name: dict(zip(table.header[1:], line.values, strict=True)) for line in table.rows}
        for table in document.tables
    }
    return to_json({name: getattr(document, name) for name in names} | {"tables": tables})


def to_json(data: Any) -> str:
    return json.dumps(json_ready(data), indent=2, allow_nan=False) + "\n"


def json_ready(value: Any) -> Any:
    """NaN and infinities as null, NumPy's numbers as Python's, dataclasses as objects."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Cells that a spreadsheet would take for a formula begin with an apostrophe."""
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(rows[0]) if rows else [])
    writer.writeheader()
    for record in rows:
        cells = json_ready(dict(record)).items()
        is_formula = {name: isinstance(cell, str) and cell.startswith(tuple("=+-@")) for name, cell in cells}
        writer.writerow({name: f"'{cell}" if is_formula[name] else cell for name, cell in cells})
    return sink.getvalue()


# --- HTML --------------------------------------------------------------------------------------


def as_html(document: Document) -> str:
    """A self-contained page: it loads nothing, and CSS alone switches between light and dark."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pictures = [
        (panel.title, Markup(theme.inline_svg(panel, index)))  # matplotlib escapes all texts in it
        for index, panel in enumerate(document.panels)
    ]
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(document=document, pictures=pictures, colors=theme.css_variables())


# --- files --------------------------------------------------------------------------------------------------


def write(directory: Path, texts: Mapping[str, str], panels: Sequence[Panel], *, kind: str) -> list[Path]:
    """The named texts and, if `kind` is pdf, a file for each panel."""
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    written = [directory / name for name in texts]
    return written + (theme.save_pdfs(panels, directory) if kind == "pdf" else [])
