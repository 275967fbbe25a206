"""A comparison as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_ppo.reports import html
from parallel_ppo.reports.compare import Comparison
from parallel_ppo.reports.comparison_plot import comparison_figure
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.statistics import Estimate
from parallel_ppo.reports.words import (
    equal_time_lines,
    estimate,
    footnotes,
    group_rows,
    headline,
    number,
    percent,
    subtitle,
)


def comparison_page(groups: Sequence[Group], comparison: Comparison) -> str:
    title = headline(comparison)
    labels = [result.label for result in comparison.groups]
    rows = [(name, *cells) for name, cells in group_rows(comparison)]
    directories = [
        (result.label, directory) for result in comparison.groups for directory in result.directories
    ]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        html.paragraph(subtitle(comparison), kind="muted"),
        html.bullets("Read with care", comparison.warnings, kind="warnings"),
        html.cards(_cards(comparison)),
        html.picture(
            lambda theme: comparison_figure(groups, comparison, theme=theme, titled=False), description=title
        ),
        "<h2>Figures</h2>",
        html.table(["", *labels], rows),
        *[html.paragraph(line) for line in equal_time_lines(comparison)],
        html.bullets("Notes", comparison.notes),
        "<h2>Runs</h2>",
        html.table(["label", "directory"], directories),
        "<footer>" + "".join(html.paragraph(line) for line in footnotes(comparison)) + "</footer>",
    ]
    return html.page(title=title, body=body)


def _cards(comparison: Comparison) -> list[str]:
    pair = max(comparison.pairs, key=lambda item: item.speedup.value)
    result = next(item for item in comparison.groups if item.label == pair.label)
    verdict = {"identical": "yes", "different": "no"}.get(pair.identity.verdict, "not known")
    return [
        html.card(f"{number(pair.speedup.value, 2)}x", "Speedup", _range(pair.speedup, 2, "x")),
        html.card(
            number(result.throughput.value),
            f"Steps per second, {pair.label}",
            _range(result.throughput, 0),
        ),
        html.card(
            percent(Estimate(pair.efficiency.value)), "Efficiency per worker", f"{result.workers} workers"
        ),
        html.card(
            number(result.final_return.value, 2), f"Return, {pair.label}", _range(result.final_return, 2)
        ),
        html.card(verdict, "Same bits", f"{pair.identity.compared} iterations compared"),
        html.card(number(result.peak_rss_mb), f"Peak MB, {pair.label}"),
    ]


def _range(value: Estimate, digits: int, unit: str = "") -> str:
    text = estimate(value, digits, unit)
    return "95 %: " + text.split("(", 1)[1].rstrip(")") if "(" in text else "one sample, no interval"
