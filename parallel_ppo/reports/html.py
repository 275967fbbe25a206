"""Self-contained pages: one file, nothing loaded from anywhere, light and dark as the reader has it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape as escape

from matplotlib.figure import Figure

from parallel_ppo.reports.theme import DARK, LIGHT, Theme, figure_bytes

STYLE = """
:root { color-scheme: light dark; --background: #ffffff; --text: #1c2127; --muted: #5c6670; --line: #e3e7eb;
  --panel: #f6f8fa; --accent: #1f6fb5; --warning: #8a5a00; --warning-panel: #fff6e0; }
@media (prefers-color-scheme: dark) { :root { --background: #15191e; --text: #e7ebef; --muted: #9aa5b1;
  --line: #2b323a; --panel: #1c2229; --accent: #62aee8; --warning: #f0c26a; --warning-panel: #2c2617; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--background); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 8px; }
h2 { font-size: 1.15rem; margin: 40px 0 12px; }
.muted, footer { color: var(--muted); font-size: 0.9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 24px 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 1.6rem; line-height: 1.2; color: var(--accent); }
.card small { color: var(--muted); display: block; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
  gap: 16px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; }
tbody th { font-weight: 500; color: var(--muted); white-space: nowrap; }
td { min-width: 11em; }
td.number { min-width: 0; }
.notes { margin-top: 16px; }
.warnings { background: var(--warning-panel); color: var(--warning); border-radius: 10px;
  padding: 12px 16px; margin: 20px 0; }
.warnings ul, .notes ul { margin: 4px 0 0; padding-left: 20px; }
img { width: 100%; height: auto; display: block; }
code { font-size: 0.9em; overflow-wrap: anywhere; }
h1, .card, li { overflow-wrap: anywhere; }
td, th { overflow-wrap: break-word; }
summary { cursor: pointer; color: var(--accent); margin: 16px 0; }
footer { margin-top: 48px; border-top: 1px solid var(--line); padding-top: 12px; }
@media (max-width: 640px) {
  main { padding: 20px 14px 40px; }
  .card b { font-size: 1.25rem; }
  thead { display: none; }
  table, tbody, tr, tbody th, td, td.number { display: block; width: 100%; min-width: 0; text-align: left; }
  tr { border-bottom: 1px solid var(--line); padding: 8px 0; }
  tbody th, td, td.number { border: 0; padding: 2px 0; white-space: normal; overflow-wrap: anywhere; }
  tbody th { color: var(--text); font-weight: 600; }
  td::before { content: attr(data-column); color: var(--muted); display: inline-block;
    min-width: 9em; margin-right: 8px; }
}
"""


def page(*, title: str, body: Sequence[str]) -> str:
    content = "\n".join(part for part in body if part)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""


def pictures(items: Sequence[tuple[str, Callable[[Theme], Figure]]]) -> str:
    """Side by side where there is room, below each other where not; light and dark."""
    found = []
    for description, draw in items:
        light, dark = (_data_address(figure_bytes(draw(theme), "svg")) for theme in (LIGHT, DARK))
        found.append(
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img src="{light}" alt="{escape(description)}"></picture>'
        )
    return '<div class="pictures">' + "".join(found) + "</div>"


def _data_address(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def card(value: str, name: str, detail: str = "") -> str:
    small = f"<small>{escape(detail)}</small>" if detail else ""
    return f'<div class="card">{escape(name)}<b>{escape(value)}</b>{small}</div>'


def cards(items: Sequence[str]) -> str:
    return '<div class="cards">' + "".join(items) + "</div>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 99) -> str:
    """The first cell of a row is its heading; columns from `numbers_from` on are set right.

    On a narrow page a row is a paragraph, and each cell says which column it is.
    """

    def kind(column: int) -> str:
        return ' class="number"' if column >= numbers_from else ""

    head = "".join(f"<th{kind(column)}>{escape(cell)}</th>" for column, cell in enumerate(header))
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f'<td{kind(column)} data-column="{escape(header[column])}">{escape(_whole(cell))}</td>'
            for column, cell in enumerate(rest, start=1)
        )
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    body = "".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(summary: str, content: str) -> str:
    """Opened by a click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _whole(text: str) -> str:
    """An interval stays on one line."""
    return text.replace(" to ", "\u00a0to\u00a0") if text.endswith(")") else text


def bullets(title: str, lines: Sequence[str], *, kind: str = "notes") -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="{kind}"><strong>{escape(title)}</strong><ul>{items}</ul></div>'


def paragraph(text: str, *, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
