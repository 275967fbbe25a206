"""A comparison in words, numbers and pictures: on the console, as text, as a page, as a figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from parallel_ppo.printable import count
from parallel_ppo.reports import html
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.command_line import shown
from parallel_ppo.reports.comparison import (
    DIFFERENT,
    IDENTICAL,
    NOT_ASKED,
    Comparison,
    GroupResult,
    PairResult,
)
from parallel_ppo.reports.comparison_panels import Drawing, legend_of, panels
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.statistics import LEAST_ITERATIONS, Estimate
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import duration, estimate, number, percent, span

CELL = 34
LINE = 110

# --- the sentences ------------------------------------------------------------------------------------------


def fastest(comparison: Comparison) -> PairResult:
    return max(comparison.pairs, key=lambda pair: pair.speedup.value)


def headline(comparison: Comparison) -> str:
    """The answer in one line; no figure that an interval does not stand behind."""
    pair = fastest(comparison)
    both, speedup = f"{pair.label} and {pair.baseline}", pair.speedup
    bits = {IDENTICAL: ", learning the same bits", DIFFERENT: ", learning other bits"}
    same = bits.get(pair.identity.verdict, "")
    if comparison.equal_effort is not None:
        names = dict.fromkeys(result.algorithm for result in comparison.groups)
        return f"{' / '.join(names)}: different algorithms, compared at equal steps and at equal time"
    if not pair.same_work:
        return f"{both} did different work: their speeds do not compare"
    if not math.isfinite(speedup.low):
        return f"{both}: fewer than {LEAST_ITERATIONS} iterations, too few to compare speeds{same}"
    if speedup.low < 1 < speedup.high:
        return f"{both}: no clear difference in speed{same}"
    return f"{pair.label} is {speedup.value:.2f}x ({span(speedup, 2)}) as fast as {pair.baseline}{same}"


def subtitle(comparison: Comparison) -> str:
    """What was run, on what."""
    groups = comparison.groups
    facts = (
        [result.env for result in groups],
        [f"network {result.policy}" for result in groups],
        [count(result.n_epochs or 0, "epoch") for result in groups],
        [result.machine for result in groups],
    )
    parts = [" vs ".join(dict.fromkeys(values)) for values in facts]
    parts.append(", ".join(f"{result.label}: {processes(result)}" for result in groups))
    if comparison.warnings:
        parts.append(f"{count(len(comparison.warnings), 'warning').upper()}, see the report")
    return "   |   ".join(parts)


def processes(result: GroupResult) -> str:
    is_sequential = result.kind == "sequential"
    return count(result.threads, "thread") if is_sequential else count(result.workers, "worker")


def group_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The table: a name, and one cell per group. What was run is a row only where it differs."""
    groups = comparison.groups
    work = (
        "game, network, epochs",
        [f"{result.env}, {result.policy}, {result.n_epochs}" for result in groups],
    )
    pairs: list[PairResult | None] = [None, *comparison.pairs]
    return [
        ("runs", [_runs(result) for result in groups]),
        *([work] if len(set(work[1])) > 1 else []),
        ("cores at work", [processes(result) for result in groups]),
        ("steps", [number(result.steps) for result in groups]),
        ("wall time", [duration(result.wall_time) for result in groups]),
        ("throughput (steps/s)", [estimate(result.throughput) for result in groups]),
        *_speedup_rows(pairs),
        ("collection only (steps/s)", [number(result.collect_fps) for result in groups]),
        ("share of the update", [f"{number(100 * result.update_share)}%" for result in groups]),
        (f"return, last {RETURN_WINDOW} episodes", [_final_return(result) for result in groups]),
        *_equal_rows(comparison),
        *_time_rows(comparison),
        ("peak memory (MB)", [number(result.peak_rss_mb) for result in groups]),
        ("CPU use", [estimate(Estimate(result.cpu_percent), unit="%") for result in groups]),
        ("same bits", [pair.identity.sentence if pair else "baseline" for pair in pairs]),
    ]


def _speedup_rows(pairs: Sequence[PairResult | None]) -> list[tuple[str, list[str]]]:
    """Steps of different algorithms cost different work: there is no speedup from one to the other."""
    if not any(pair and pair.same_algorithm for pair in pairs):
        return []

    def cells(figure: Callable[[PairResult], str]) -> list[str]:
        told = [figure(pair) if pair and pair.same_algorithm else "other algorithm" for pair in pairs]
        return ["baseline", *told[1:]]

    return [
        ("speedup", cells(lambda pair: estimate(pair.speedup, 2, "x"))),
        ("efficiency per worker", cells(lambda pair: percent(pair.efficiency))),
    ]


def _equal_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    effort = comparison.equal_effort
    if effort is None:
        return []
    labels = [result.label for result in comparison.groups]
    return [
        (f"return after {effort.steps:,} steps", [number(effort.return_at_steps[key], 2) for key in labels]),
        (f"return after {duration(effort.time)}", [number(effort.return_at_time[key], 2) for key in labels]),
    ]


def _runs(result: GroupResult) -> str:
    text = "seed " + ", ".join(map(str, result.seeds))
    return text + (" (in progress)" if result.in_progress else "")


def _final_return(result: GroupResult) -> str:
    """A window that is not full says how many episodes it has."""
    if result.final_episodes < LEAST_EPISODES:
        return f"only {count(result.final_episodes, 'episode')} yet"
    text = estimate(result.final_return, 2)
    if not math.isfinite(result.final_return.low):
        text += ", all equal"
    return text if result.final_episodes >= RETURN_WINDOW else f"{text}, {result.final_episodes} episodes"


def _time_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Returns that all groups passed at the same moments are one row, named for the highest."""
    rows: dict[tuple[str, ...], str] = {}
    for threshold in sorted(comparison.thresholds):
        times = [result.seconds_to_return[f"{threshold:g}"] for result in comparison.groups]
        cells = tuple(duration(time) if math.isfinite(time) else "not reached" for time in times)
        if cells not in rows or set(cells) != {"not reached"}:  # not reached: the lowest says most
            rows[cells] = f"time to return {threshold:g}"
    return [(name, list(cells)) for cells, name in rows.items()]


def equal_time_lines(comparison: Comparison) -> list[str]:
    lines = []
    for pair in () if comparison.equal_effort else comparison.pairs:
        told = ", ".join(f"{name} {number(value, 2)}" for name, value in pair.return_at_equal_time.items())
        lines.append(f"Return after {duration(pair.equal_time)} of wall time: {told}.")
    return lines


def footnotes(comparison: Comparison) -> list[str]:
    is_single = all(len(result.seeds) == 1 for result in comparison.groups)
    lines = [
        "Throughput is end to end (collect and update) without the first iteration. Intervals are "
        "95 % bootstraps: speeds over blocks of neighbouring iterations and over seeds (from "
        f"{LEAST_ITERATIONS} iterations on), returns over "
        f"{'episodes' if is_single else 'seeds'} (from {LEAST_EPISODES} episodes on).",
    ]
    if any(pair.same_algorithm for pair in comparison.pairs):
        lines.append(
            "Efficiency is speedup divided by the number of workers, times the threads of the baseline."
        )
    if is_single:
        lines.append(
            "One run each: the intervals do not cover the change from run to run; give several seeds."
        )
    return lines


def _directories(comparison: Comparison) -> list[tuple[str, str]]:
    return [(result.label, directory) for result in comparison.groups for directory in result.directories]


# --- as text ------------------------------------------------------------------------------------------------


def text_report(comparison: Comparison) -> str:
    """The whole comparison for a reader without colours or pictures."""
    title = headline(comparison)
    parts = [f"{title}\n{'=' * len(title)}", textwrap.fill(subtitle(comparison), LINE), _table(comparison)]
    parts += ["\n".join(lines)] if (lines := equal_time_lines(comparison)) else []
    directories = [f"{label}: {directory}" for label, directory in _directories(comparison)]
    lists = (("READ WITH CARE", comparison.warnings), ("Notes", comparison.notes), ("Runs", directories))
    parts += ["\n".join([name, *map(_bullet, lines)]) for name, lines in lists if lines]
    parts.append("\n".join(textwrap.fill(line, LINE) for line in footnotes(comparison)))
    return "\n\n".join(parts) + "\n"


def _table(comparison: Comparison) -> str:
    names = [comparison.title(result) for result in comparison.groups]
    lines = [("", names), *group_rows(comparison)]
    table = [[name, *cells] for name, cells in lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths = [widths[0], *[min(CELL, width) for width in widths[1:]]]
    rows = ["\n".join(_row(cells, widths)) for cells in table]
    return "\n".join([rows[0], "-" * (sum(widths) + 2 * len(widths)), *rows[1:]])


def _row(cells: list[str], widths: list[int]) -> list[str]:
    """One row, over as many lines as its longest cell needs."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    padded = [
        [line.ljust(width) for line in lines + [""] * (height - len(lines))]
        for lines, width in zip(wrapped, widths, strict=True)
    ]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def _bullet(line: str) -> str:
    return textwrap.fill(line, LINE, initial_indent="- ", subsequent_indent="  ", break_long_words=False)


def print_comparison(console: Console, comparison: Comparison) -> None:
    table = Table(title=shown(headline(comparison)), title_justify="left", title_style="bold")
    table.add_column("")
    for result in comparison.groups:
        table.add_column(shown(comparison.title(result)), overflow="fold")
    for name, cells in group_rows(comparison):
        table.add_row(name, *[shown(cell) for cell in cells], style="bold" if name == "speedup" else "")
    console.print(table)
    for line in comparison.warnings:
        console.print(f"[yellow]warning:[/yellow] {shown(line)}", soft_wrap=True)
    for line in comparison.notes:
        console.print(f"[dim]note: {shown(line)}[/dim]", soft_wrap=True)


# --- as a page ----------------------------------------------------------------------------------------------


def comparison_page(groups: Sequence[Group], comparison: Comparison) -> str:
    title = headline(comparison)
    rows = [(name, *cells) for name, cells in group_rows(comparison)]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        html.paragraph(subtitle(comparison), kind="muted"),
        html.bullets("Read with care", comparison.warnings, kind="warnings"),
        html.cards(_cards(comparison)),
        html.pictures([(name, _alone(draw, comparison)) for name, draw in panels(groups, comparison)]),
        html.paragraph(_lines(groups), kind="muted"),
        "<h2>Figures</h2>",
        html.table(["", *[comparison.title(result) for result in comparison.groups]], rows),
        *[html.paragraph(line) for line in equal_time_lines(comparison)],
        html.bullets("Notes", comparison.notes),
        "<h2>Runs</h2>",
        html.table(["label", "directory"], _directories(comparison)),
        "<footer>" + "".join(html.paragraph(line) for line in footnotes(comparison)) + "</footer>",
    ]
    return html.page(title=title, body=body)


def _cards(comparison: Comparison) -> list[str]:
    pair = fastest(comparison)
    result = next(item for item in comparison.groups if item.label == pair.label)
    verdicts = {IDENTICAL: "yes", DIFFERENT: "no", NOT_ASKED: "not asked"}
    verdict = verdicts.get(pair.identity.verdict, "not known")
    per_worker = percent(Estimate(pair.efficiency.value)) if pair.same_work else "not known"
    is_known = pair.same_work and math.isfinite(pair.speedup.low)
    speedup = f"{number(pair.speedup.value, 2)}x" if is_known else "not known"
    returns, fps = number(result.final_return.value, 2), result.throughput
    return [
        html.card(speedup, "Speedup", _interval(pair.speedup, 2) if pair.same_work else "different work"),
        html.card(number(fps.value), f"Steps per second, {pair.label}", _interval(fps)),
        html.card(per_worker, "Efficiency per worker", processes(result)),
        html.card(returns, f"Return, {pair.label}", f"{count(result.final_episodes, 'episode')}"),
        html.card(verdict, "Same bits", f"{count(pair.identity.compared, 'iteration')} compared"),
        html.card(number(result.peak_rss_mb), f"Peak MB, {pair.label}"),
    ]  # fmt: skip


def _interval(value: Estimate, digits: int = 0) -> str:
    return (
        f"95 %: {span(value, digits)}" if math.isfinite(value.low) else "too few iterations for an interval"
    )


# --- as a figure --------------------------------------------------------------------------------------------


def comparison_figure(
    groups: Sequence[Group], comparison: Comparison, *, theme: Theme = themes.LIGHT
) -> Figure:
    with themes.drawing(theme):
        title, legend = headline(comparison), legend_of(comparison, theme)
        _, body, figure = themes.headed_figure(13, 8.6, title=title, legend=legend)
        for axes, (_, draw) in zip(body.subplots(2, 2).ravel(), panels(groups, comparison), strict=True):
            draw(axes, theme)
        small = "\n".join(textwrap.fill(text, 170) for text in (subtitle(comparison), _lines(groups)))
        body.supxlabel(small, x=0.012, ha="left", fontsize=9, color=theme.muted)
    return figure


def _lines(groups: Sequence[Group]) -> str:
    """What is thick, thin, shaded, dotted and dashed in these panels."""
    has_seeds = any(len(group.runs) > 1 for group in groups)
    return (
        "Thick lines: throughput smoothed over a twentieth of the run (returns: mean of the last "
        f"{RETURN_WINDOW} episodes{', and over seeds, with 95 % bands' if has_seeds else ''}). "
        f"Thin lines: each iteration{' (returns: each seed)' if has_seeds else ''}. "
        "Dotted: mean throughput. Dashed: the baseline."
    )


def _alone(draw: Drawing, comparison: Comparison) -> Callable[[Theme], Figure]:
    """A panel as a figure of its own, for pages of any width."""
    return lambda theme: themes.panel_figure(draw, theme, legend=legend_of(comparison, theme))
