"""A comparison as plain text, and as a table on the console."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parallel_ppo.reports.compare import Comparison
from parallel_ppo.reports.words import (
    column_widths,
    equal_time_lines,
    footnotes,
    group_rows,
    headline,
    subtitle,
)

CELL = 34
LINE = 110


def text_report(comparison: Comparison) -> str:
    """The whole comparison for a reader without colours or pictures."""
    title = headline(comparison)
    parts = [f"{title}\n{'=' * len(title)}", _fill(subtitle(comparison)), _table(comparison)]
    parts.append("\n".join(equal_time_lines(comparison)))
    if comparison.warnings:
        parts.append("READ WITH CARE\n" + "\n".join(_bullet(line) for line in comparison.warnings))
    if comparison.notes:
        parts.append("Notes\n" + "\n".join(_bullet(line) for line in comparison.notes))
    directories = [
        f"{result.label}: {directory}" for result in comparison.groups for directory in result.directories
    ]
    parts.append("Runs\n" + "\n".join(_bullet(line) for line in directories))
    parts.append("\n".join(_fill(line) for line in footnotes(comparison)))
    return "\n\n".join(parts) + "\n"


def print_comparison(console: Console, comparison: Comparison) -> None:
    table = Table(title=escape(headline(comparison)), title_justify="left", title_style="bold")
    table.add_column("")
    for result in comparison.groups:
        table.add_column(escape(result.label), overflow="fold")
    for name, cells in group_rows(comparison):
        table.add_row(name, *[escape(cell) for cell in cells], style="bold" if name == "speedup" else "")
    console.print(table)
    for line in comparison.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(line)}", soft_wrap=True)
    for line in comparison.notes:
        console.print(f"[dim]note: {escape(line)}[/dim]", soft_wrap=True)


def _table(comparison: Comparison) -> str:
    header = [result.label for result in comparison.groups]
    rows = group_rows(comparison)
    widths = column_widths(header, rows)
    widths = [widths[0], *[min(CELL, width) for width in widths[1:]]]
    lines = [*_row(["", *header], widths), "-" * (sum(widths) + 2 * len(widths))]
    for name, cells in rows:
        lines += _row([name, *cells], widths)
    return "\n".join(lines)


def _row(cells: list[str], widths: list[int]) -> list[str]:
    """One row, over as many lines as its longest cell needs."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    return [
        "  ".join(
            (lines[index] if index < len(lines) else "").ljust(width)
            for lines, width in zip(wrapped, widths, strict=True)
        ).rstrip()
        for index in range(height)
    ]


def _fill(line: str) -> str:
    return textwrap.fill(line, LINE)


def _bullet(line: str) -> str:
    return textwrap.fill(line, LINE, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
