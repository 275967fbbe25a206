"""A report as data: one set of cards, tables and notes, which every renderer shows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from parallel_ppo.printable import printable
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.theme import Panel
from parallel_ppo.reports.words import json_ready

TEXT_WIDTH = 110
TEMPLATE = Path(__file__).with_name("page.html.jinja")


@dataclass(frozen=True)
class Card:
    value: str
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """The first cell of a row is its heading; all others are right-aligned."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Document:
    headline: str
    subtitle: str
    tables: Sequence[Table]
    data: Any  # for the JSON: everything that the tables show, and more
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    footnotes: Sequence[str] = ()
    panels: Sequence[Panel] = field(default=(), compare=False)
    picture_note: str = ""

    def lists(self) -> list[tuple[str, Sequence[str]]]:
        return [
            (name, lines) for name, lines in (("Warnings", self.warnings), ("Notes", self.notes)) if lines
        ]


def print_document(console: Console, document: Document) -> None:
    """Cells are `Text`: square brackets and control characters in them have no effect."""
    console.print(_plain(document.headline, "bold"))
    console.print(_plain(document.subtitle, "dim"))
    for table in document.tables:
        grid = RichTable(title=_plain(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD)
        for index, name in enumerate(table.header):
            grid.add_column(_plain(name), justify="right" if index else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(_plain, row))
        console.print(grid)
    for name, lines in document.lists():
        console.print(_plain(name, "bold yellow" if name == "Warnings" else "bold"))
        for line in lines:
            console.print(_plain(f"- {line}"))
    for line in document.footnotes:
        console.print(_plain(line, "dim"))


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def as_text(document: Document) -> str:
    """What the terminal shows, without colors."""
    sink = io.StringIO()
    console = Console(file=sink, width=TEXT_WIDTH, force_terminal=False, color_system=None, emoji=False)
    print_document(console, document)
    return re.sub(r" +\n", "\n", sink.getvalue())


def as_json(data: Any) -> str:
    return json.dumps(json_ready(data), indent=2, allow_nan=False) + "\n"


def as_markdown(document: Document) -> str:
    lines = [f"# {_escaped(document.headline)}", "", _escaped(document.subtitle), ""]
    for table in document.tables:
        lines += [
            f"## {_escaped(table.title)}",
            "",
            _row(table.header),
            "|---" + "|--:" * (len(table.header) - 1) + "|",
        ]
        lines += [*map(_row, table.rows), ""]
    for name, items in document.lists():
        lines += [f"## {name}", "", *[f"- {_escaped(item)}" for item in items], ""]
    return "\n".join([*lines, *map(_escaped, document.footnotes)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|&#])", r"\\\1", " ".join(printable(text).split()))


def as_html(document: Document) -> str:
    """A self-contained page: nothing is loaded, and style sheets alone decide between light and dark."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pictures = [
        (panel.title, Markup(themes.inline_svg(panel, index)))  # matplotlib escapes all texts in it
        for index, panel in enumerate(document.panels)
    ]
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(document=document, pictures=pictures, colors=themes.css_variables(themes.LIGHT))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Cells that a spreadsheet would take for a formula begin with an apostrophe."""
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(rows[0]) if rows else [])
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                name: f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value
                for name, value in json_ready(dict(row)).items()
            }
        )
    return sink.getvalue()
