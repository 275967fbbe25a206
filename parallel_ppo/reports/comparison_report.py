"""A comparison as a document: the answer, the table, and the pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parallel_ppo.printable import count
from parallel_ppo.reports import curves
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.comparison import (
    DIFFERENT,
    IDENTICAL,
    NOT_COMPARED,
    Comparison,
    GroupResult,
    PairResult,
)
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW
from parallel_ppo.reports.document import Card, Document, Table
from parallel_ppo.reports.groups import Group, algorithm, short_env
from parallel_ppo.reports.plots import (
    EVALUATIONS,
    OVER_STEPS,
    Over,
    draw_curves,
    draw_evaluations,
    draw_phase_bars,
    draw_returns,
    lines_note,
    over_time,
)
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import LEAST_ITERATIONS, LEAST_SEEDS, Estimate, smooth, smoothing_window
from parallel_ppo.reports.theme import LIGHT, Panel
from parallel_ppo.reports.words import duration, estimate, number, percent, span

Row = list[str]


def document(groups: Sequence[Group], comparison: Comparison) -> Document:
    titles = [comparison.title(result) for result in comparison.groups]
    runs = [f"{result.label}: {', '.join(result.directories)}" for result in comparison.groups]
    return Document(
        headline=headline(comparison),
        subtitle=subtitle(comparison),
        cards=cards(comparison),
        warnings=comparison.warnings,
        tables=[Table("Comparison", ["", *titles], rows(comparison))],
        notes=[*comparison.notes, *runs],
        footnotes=footnotes(comparison),
        data=asdict(comparison),
        panels=panels(groups, comparison),
        picture_note=lines_note(groups) + " Dashed: the baseline.",
    )


# --- the answer ---------------------------------------------------------------------------------------------


def fastest(comparison: Comparison) -> PairResult:
    """Of those whose speed can be compared, if there are any."""
    valid = [pair for pair in comparison.pairs if not pair.void]
    return max(valid or comparison.pairs, key=lambda pair: pair.speedup.value)


def headline(comparison: Comparison) -> str:
    pair = fastest(comparison)
    both, speedup = f"{pair.label} and {pair.baseline}", pair.speedup
    if comparison.has_other_algorithms:
        names = dict.fromkeys(result.algorithm for result in comparison.groups)
        return f"{' / '.join(names)}: different algorithms, compared at equal steps and at equal time"
    if pair.void:
        answer = f"The speeds of {both} cannot be compared: {pair.void}"
    elif not math.isfinite(speedup.low):
        answer = f"{both}: fewer than {LEAST_ITERATIONS} iterations, too few to compare speeds"
    elif speedup.low < 1 < speedup.high:
        answer = f"{both}: no significant speed difference, {speedup.value:.2f}x ({span(speedup, 2)})"
    else:
        answer = f"{pair.label} is {speedup.value:.2f}x ({span(speedup, 2)}) as fast as {pair.baseline}"
    bits = {IDENTICAL: "; parameters are bit-identical", DIFFERENT: "; parameters differ"}
    return answer + bits.get(pair.identity.verdict, "")


def subtitle(comparison: Comparison) -> str:
    """What was run, and where."""
    groups = comparison.groups
    facts = (
        [result.env for result in groups],
        [f"network {result.policy}" for result in groups],
        [f"epochs {number(result.n_epochs)}" for result in groups],
        [result.machine for result in groups],
    )
    parts = [" vs ".join(dict.fromkeys(values)) for values in facts]
    return " | ".join([*parts, ", ".join(f"{result.label}: {processes(result)}" for result in groups)])


def cards(comparison: Comparison) -> list[Card]:
    pair = fastest(comparison)
    result = next(item for item in comparison.groups if item.label == pair.label)
    bits = {IDENTICAL: "yes", DIFFERENT: "no", NOT_COMPARED: "not compared"}.get(
        pair.identity.verdict, "unknown"
    )
    found = [
        Card(
            number(result.throughput.value), f"Steps per second, {pair.label}", _interval(result.throughput)
        ),
        Card(
            number(result.final_return.value, 2),
            f"Return, {pair.label}",
            count(result.final_episodes, "episode"),
        ),
        Card(bits, "Bit-identical", f"{count(pair.identity.compared, 'iteration')} compared"),
        Card(number(result.peak_rss_mb), f"Peak MB, {pair.label}"),
    ]
    if comparison.has_other_algorithms:
        return found
    if pair.void or not math.isfinite(pair.speedup.low):
        card = (
            Card("not comparable", "Speedup", pair.void)
            if pair.void
            else Card("unknown", "Speedup", "too few iterations")
        )
        return [card, *found]
    worker = Card(percent(Estimate(pair.efficiency.value)), "Efficiency per worker", processes(result))
    return [Card(f"{pair.speedup.value:.2f}x", "Speedup", _interval(pair.speedup, 2)), worker, *found]


def _interval(value: Estimate, digits: int = 0) -> str:
    return f"95 %: {span(value, digits)}" if math.isfinite(value.low) else ""


def processes(result: GroupResult) -> str:
    is_sequential = result.kind == "sequential"
    return count(result.threads, "thread") if is_sequential else count(result.workers, "worker")


# --- the table ----------------------------------------------------------------------------------------------


def rows(comparison: Comparison) -> list[Row]:
    """A name and one cell per group. Facts that are equal for all groups are in the subtitle."""
    groups = comparison.groups
    work = [f"{result.env}, {result.policy}, {number(result.n_epochs)}" for result in groups]
    pairs: list[PairResult | None] = [None, *comparison.pairs]
    cost = {name for result in groups for name, value in result.seconds_per_1000_steps.items() if value > 0}
    return [
        ["runs", *map(_runs, groups)],
        *([["game, network, epochs", *work]] if len(set(work)) > 1 else []),
        ["cores at work", *map(processes, groups)],
        ["steps", *[number(result.steps) for result in groups]],
        ["wall time", *[duration(result.wall_time) for result in groups]],
        ["throughput (steps/s)", *[estimate(result.throughput) for result in groups]],
        *_speedup_rows(pairs),
        ["collection only (steps/s)", *[number(result.collect_fps) for result in groups]],
        *[
            [
                f"{themes.PHASE_NAMES[name]}, per 1,000 steps",
                *[duration(r.seconds_per_1000_steps[name]) for r in groups],
            ]
            for name in themes.PHASES
            if name in cost
        ],
        [f"return, last {RETURN_WINDOW} episodes", *map(_final_return, groups)],
        *_equal_rows(comparison),
        *_time_rows(comparison),
        ["peak memory (MB)", *[number(result.peak_rss_mb) for result in groups]],
        ["CPU use", *[estimate(Estimate(result.cpu_percent), unit="%") for result in groups]],
        ["bit-identical", *[pair.identity.sentence if pair else "baseline" for pair in pairs]],
    ]


def _speedup_rows(pairs: Sequence[PairResult | None]) -> list[Row]:
    """Steps of different algorithms cost different work: there is no speedup from one to the other."""
    if not any(pair and pair.same_algorithm for pair in pairs):
        return []

    def cells(figure: Callable[[PairResult], str]) -> Row:
        return ["baseline", *[("not comparable" if pair.void else figure(pair)) for pair in pairs if pair]]

    return [
        ["speedup", *cells(lambda pair: estimate(pair.speedup, 2, "x"))],
        ["efficiency per worker", *cells(lambda pair: percent(pair.efficiency))],
    ]


def _equal_rows(comparison: Comparison) -> list[Row]:
    """Equal steps matter for different algorithms only: one algorithm learns the same from them."""
    effort, labels = comparison.equal_effort, [result.label for result in comparison.groups]
    found = [
        [f"return after {duration(effort.time)}", *[number(effort.return_at_time[key], 2) for key in labels]]
    ]
    if comparison.has_other_algorithms:
        values = [number(effort.return_at_steps[key], 2) for key in labels]
        found.insert(0, [f"return after {effort.steps:,} steps", *values])
    return found


def _runs(result: GroupResult) -> str:
    text = "seed " + ", ".join(map(str, result.seeds))
    return text + (" (in progress)" if result.in_progress else "")


def _final_return(result: GroupResult) -> str:
    if result.final_episodes < LEAST_EPISODES:
        return f"only {count(result.final_episodes, 'episode')} yet"
    text = estimate(result.final_return, 2)
    return text if result.final_episodes >= RETURN_WINDOW else f"{text}, {result.final_episodes} episodes"


def _time_rows(comparison: Comparison) -> list[Row]:
    """Returns that all groups reached at the same moments are one row, named after the highest."""
    found: dict[tuple[str, ...], str] = {}
    for threshold in sorted(comparison.thresholds):
        times = [result.seconds_to_return[f"{threshold:g}"] for result in comparison.groups]
        cells = tuple(duration(time) if math.isfinite(time) else "not reached" for time in times)
        if cells not in found or set(cells) != {"not reached"}:  # of those never reached, the lowest
            found[cells] = f"time to return {threshold:g}"
    return [[name, *cells] for cells, name in found.items()]


def footnotes(comparison: Comparison) -> list[str]:
    is_single = all(len(result.seeds) == 1 for result in comparison.groups)
    lines = [
        "Throughput is end to end (collect and update) without the first iteration. Intervals are 95 % "
        f"bootstraps: speeds over blocks of iterations and over seeds (from {LEAST_ITERATIONS} iterations on), "
        f"returns over {'episodes' if is_single else f'seeds (from {LEAST_SEEDS} seeds on)'}."
    ]
    if any(pair.same_algorithm for pair in comparison.pairs):
        lines.append("Efficiency is speedup divided by workers, times the threads of the baseline.")
    if is_single:
        lines.append(
            "One run each: the intervals do not cover the variation between runs; use several seeds."
        )
    return lines


def run_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For results.csv: one row per run."""
    return [
        {
            "label": group.label,
            "run": run.name,
            "seed": run.seed,
            "environment": short_env(run.env_id),
            "algorithm": algorithm(run),
            "network": run.word("training.policy"),
            "workers": run.num_workers,
            "steps": int(run.steps[-1]),
            "wall_time_seconds": float(run.wall_time[-1]),
            "steps_per_second": curves.timing(run).throughput,
            "return_last_100": float(np.mean(final)) if len(final := curves.final_returns(run)) else None,
            "peak_memory_mb": curves.peak_memory_mb([run]),
            "policy_sha256": run.policy_sha256[-1],
        }
        for group in groups
        for run in group.runs
    ]


# --- the pictures -------------------------------------------------------------------------------------------


def panels(groups: Sequence[Group], comparison: Comparison) -> list[Panel]:
    time = over_time(groups)
    costs = [(result.label, result.seconds_per_1000_steps) for result in comparison.groups]
    legend = [
        (
            f"{comparison.title(result)}: {number(result.throughput.value)} steps/s",
            themes.color_of(LIGHT, index),
        )
        for index, result in enumerate(comparison.groups)
    ]
    found = [
        Panel(
            "return_over_time",
            "Return over wall time",
            partial(draw_returns, groups, time, dash_first=True),
            legend,
        ),
        Panel(
            "return_over_steps",
            "Return over steps",
            partial(draw_returns, groups, OVER_STEPS, dash_first=True),
            legend,
        ),
        Panel("throughput", "Throughput, end to end", partial(_draw_throughput, groups, time), legend),
        Panel("phases", "Where the time goes", partial(draw_phase_bars, costs)),
    ]
    if any(name in run.columns for name in EVALUATIONS for group in groups for run in group.runs):
        draw = partial(draw_evaluations, groups, OVER_STEPS)
        found.append(Panel("evaluation", "Return of evaluations", draw, legend))
    return found


def _throughput(run: Run) -> np.ndarray:
    fps = run.iteration_steps() / np.maximum(run.iteration_seconds(), 1e-9)
    fps[: curves.warm_up(run)] = np.nan
    return fps


def _smoothed_throughput(run: Run) -> np.ndarray:
    fps = _throughput(run)
    return np.where(np.isfinite(fps), smooth(fps, smoothing_window(len(fps))), np.nan)


def _draw_throughput(groups: Sequence[Group], time: Over, axes: Axes) -> None:
    draw_curves(axes, groups, time, _smoothed_throughput, _throughput)
    time.label(axes)
    axes.set_ylabel("steps per second")
    themes.from_zero(axes)
    themes.plain_numbers(axes)
