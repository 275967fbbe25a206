"""The sentences and numbers that a comparison is told in, the same in picture, text and page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallel_ppo.reports.compare import Comparison, GroupResult, PairResult
from parallel_ppo.reports.statistics import Estimate

UNKNOWN = "-"


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else UNKNOWN


def estimate(value: Estimate, digits: int = 0, unit: str = "") -> str:
    """`182 steps/s (178 to 186)`."""
    if not math.isfinite(value.value):
        return UNKNOWN
    text = f"{value.value:,.{digits}f}{unit}"
    if math.isfinite(value.low):
        text += f" ({value.low:,.{digits}f} to {value.high:,.{digits}f})"
    return text


def percent(value: Estimate) -> str:
    return estimate(Estimate(100 * value.value, 100 * value.low, 100 * value.high), 0, "%")


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"


def headline(comparison: Comparison) -> str:
    """The answer in one line."""
    pair = max(comparison.pairs, key=lambda item: item.speedup.value)
    same = {"identical": ", learning the same bits", "different": ", learning other bits"}.get(
        pair.identity.verdict, ""
    )
    if not pair.same_work:
        return f"{pair.label} and {pair.baseline} did different work: {pair.speedup.value:.2f}x the steps per second"
    if pair.speedup.low < 1 < pair.speedup.high:
        return f"{pair.label} and {pair.baseline}: no clear difference in speed{same}"
    return f"{pair.label} is {pair.speedup.value:.2f}x as fast as {pair.baseline}{same}"


def subtitle(comparison: Comparison) -> str:
    """What was run, on what."""
    parts = []
    for values in (
        [result.env for result in comparison.groups],
        [f"network {result.policy}" for result in comparison.groups],
        [count(result.n_epochs or 0, "epoch") for result in comparison.groups],
        [result.machine for result in comparison.groups],
    ):
        parts.append(" vs ".join(dict.fromkeys(values)))
    cores = ", ".join(f"{result.label}: {processes(result)}" for result in comparison.groups)
    warnings = (
        [f"{count(len(comparison.warnings), 'warning').upper()}, see the report"]
        if comparison.warnings
        else []
    )
    return "   |   ".join([*parts, cores, *warnings])


def processes(result: GroupResult) -> str:
    if result.kind == "sequential":
        return count(result.threads, "thread")
    return count(result.workers, "worker")


def group_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The table: a name, and one cell per group."""
    groups = comparison.groups
    pairs: list[PairResult | None] = [None, *comparison.pairs]
    rows = [
        ("runs", [_runs(result) for result in groups]),
        ("game, network, epochs", [f"{result.env}, {result.policy}, {result.n_epochs}" for result in groups]),
        ("cores at work", [processes(result) for result in groups]),
        ("steps", [number(result.steps) for result in groups]),
        ("wall time", [duration(result.wall_time) for result in groups]),
        ("throughput (steps/s)", [estimate(result.throughput) for result in groups]),
        ("speedup", [estimate(pair.speedup, 2, "x") if pair else "baseline" for pair in pairs]),
        ("efficiency per worker", [percent(pair.efficiency) if pair else "baseline" for pair in pairs]),
        ("collection only (steps/s)", [number(result.collect_fps) for result in groups]),
        ("share of learning", [f"{number(100 * result.learn_share)}%" for result in groups]),
        ("return, last 100 episodes", [estimate(result.final_return, 2) for result in groups]),
    ]
    for threshold in comparison.thresholds:
        times = [result.seconds_to_return[f"{threshold:g}"] for result in groups]
        rows.append((f"time to return {threshold:g}", [_reached(time) for time in times]))
    rows += [
        ("peak memory (MB)", [number(result.peak_rss_mb) for result in groups]),
        ("CPU use", [f"{number(result.cpu_percent)}%" for result in groups]),
        ("same bits", [pair.identity.sentence if pair else "baseline" for pair in pairs]),
    ]
    return rows


def _runs(result: GroupResult) -> str:
    text = "seed " + ", ".join(map(str, result.seeds))
    return text + (" (in progress)" if result.in_progress else "")


def _reached(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "not reached"


def equal_time_lines(comparison: Comparison) -> list[str]:
    lines = []
    for pair in comparison.pairs:
        values = {name: value for name, value in pair.return_at_equal_time.items() if name != "seconds"}
        told = ", ".join(f"{name} {number(value, 2)}" for name, value in values.items())
        lines.append(f"Return after {duration(pair.return_at_equal_time['seconds'])} of wall time: {told}.")
    return lines


def footnotes(comparison: Comparison) -> list[str]:
    lines = [
        "Throughput is end to end (collect and learn) without the first iteration. Intervals are 95 % bootstraps: "
        "speeds over blocks of neighbouring iterations and over seeds, returns over "
        + ("episodes." if all(len(result.seeds) == 1 for result in comparison.groups) else "seeds."),
        "Efficiency is speedup divided by the number of workers, times the threads of the baseline.",
    ]
    if all(len(result.seeds) == 1 for result in comparison.groups):
        lines.append(
            "One run each: the intervals do not cover the change from run to run; give several seeds for that."
        )
    return lines


def column_widths(header: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> list[int]:
    table = [["", *header], *[[name, *cells] for name, cells in rows]]
    return [max(len(line[column]) for line in table) for column in range(len(header) + 1)]
