"""A comparison as a document: the answer, the table, and the pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from parallel_ppo.printable import count
from parallel_ppo.reports import curves, statistics, theme
from parallel_ppo.reports.comparison import (
    DIFFERENT,
    IDENTICAL,
    Comparison,
    Pair,
    final_return,
)
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW
from parallel_ppo.reports.document import Card, Document, Row, Table
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.plots import (
    EVALUATIONS,
    LINES_NOTE,
    OVER_STEPS,
    draw_evaluations,
    draw_phase_bars,
    draw_returns,
    draw_throughput,
    over_time,
)
from parallel_ppo.reports.statistics import LEAST_ITERATIONS, LEAST_SEEDS, Estimate
from parallel_ppo.reports.theme import PHASES, Panel
from parallel_ppo.reports.words import duration, estimate, number, percent

LEAST_SHARE = 0.001  # of the time: shorter phases have no row
SPEEDUP, EFFICIENCY = "speedup", "efficiency per worker"
THROUGHPUT, MEMORY, BITS = "throughput (steps/s)", "peak memory (MB)", "bit-identical"
RETURN = f"return, last {RETURN_WINDOW} episodes"


def document(comparison: Comparison) -> Document:
    groups = comparison.groups
    table = rows(comparison)
    runs = [f"{group.label}: {', '.join(run.name for run in group.runs)}" for group in groups]
    return Document(
        headline=headline(comparison),
        subtitle=subtitle(groups),
        cards=cards(comparison, {line.name: line for line in table}),
        warnings=comparison.warnings,
        tables=[Table("Comparison", ["", *(group.label for group in groups)], table)],
        notes=[*comparison.notes, *runs],
        footnotes=footnotes(comparison),
        panels=panels(comparison, table),
        picture_note=LINES_NOTE + " Dashed: the baseline.",
    )


# --- the answer ---------------------------------------------------------------------------------------------


def fastest(comparison: Comparison) -> Pair:
    """The fastest group whose speed can be compared, or else the fastest."""
    valid = [pair for pair in comparison.pairs if not pair.void]
    return max(valid or comparison.pairs, key=lambda pair: pair.speedup.value)


def headline(comparison: Comparison) -> str:
    pair = fastest(comparison)
    mine, baseline, speedup = pair.group.label, pair.baseline.label, pair.speedup
    if pair.void:
        answer = f"The speeds of {mine} and {baseline} cannot be compared: {pair.void}"
    elif not math.isfinite(speedup.low):
        answer = f"{mine} and {baseline}: fewer than {LEAST_ITERATIONS} iterations, too few to compare speeds"
    elif speedup.low < 1 < speedup.high:
        figure = estimate(speedup, 2, "x")
        answer = f"{mine} and {baseline}: no significant speed difference, {figure}"
    else:
        answer = f"{mine} is {estimate(speedup, 2, 'x')} as fast as {baseline}"
    bits = {IDENTICAL: "; parameters are bit-identical", DIFFERENT: "; parameters differ"}
    return answer + bits.get(pair.identity.verdict, "")


def subtitle(groups: Sequence[Group]) -> str:
    """The work and the machine."""
    first = [group.first for group in groups]
    facts = (
        [short_env(run.env_id) for run in first],
        [f"network {run.word('training.policy')}" for run in first],
        [f"epochs {run.word('training.n_epochs')}" for run in first],
        [run.cpu_model for run in first],
    )
    parts = [" vs ".join(dict.fromkeys(values)) for values in facts]
    return " | ".join([*parts, ", ".join(f"{group.label}: {cores(group)}" for group in groups)])


def cards(comparison: Comparison, table: dict[str, Row]) -> list[Card]:
    """Cells of the fastest group: the value large, what follows it small."""
    pair = fastest(comparison)
    index, found = comparison.groups.index(pair.group), []
    for name in (SPEEDUP, EFFICIENCY, THROUGHPUT, RETURN, BITS, MEMORY):
        value, _, detail = table[name].cells[index].replace(": ", " (", 1).partition(" (")
        found.append(Card(value, f"{name[0].upper()}{name[1:]}, {pair.group.label}", detail.replace(")", "")))
    return found


def cores(group: Group) -> str:
    return count(group.num_cores, "thread" if group.first.kind == "sequential" else "worker")


# --- the table ----------------------------------------------------------------------------------------------


def rows(comparison: Comparison) -> list[Row]:
    """Facts that are equal for all groups are in the subtitle."""
    groups = comparison.groups
    costs = [curves.phase_cost(group.runs) for group in groups]
    sentences = [pair.identity.sentence for pair in comparison.pairs]

    def each(name: str, measure: Callable[[Group], Any], show: Callable[[Any], str] = number) -> Row:
        return Row.of(name, map(measure, groups), show)

    work = each("game, network, epochs", lambda group: subtitle([group]).rpartition(" | ")[0], str)
    phases = [
        Row.of(f"{label}, per 1,000 steps", [cost[name] for cost in costs], duration)
        for name, (label, _) in PHASES.items()
        if any(cost[name] > LEAST_SHARE * sum(cost.values()) for cost in costs)
    ]
    return [
        each("runs", _seeds, str),
        *([work] if len(set(work.cells)) > 1 else []),
        each("cores at work", cores, str),
        each("steps", lambda group: int(max(run.steps[-1] for run in group.runs))),
        each("wall time", lambda group: np.mean([run.wall_time[-1] for run in group.runs]), duration),
        each(THROUGHPUT, _throughput, estimate),
        *_speedup_rows(comparison.pairs),
        each("collection only (steps/s)", lambda group: curves.column_mean(group.runs, "rollout_fps")),
        *phases,
        _return_row(groups),
        each(MEMORY, lambda group: curves.peak_memory_mb(group.runs)),
        each(
            "CPU use",
            lambda group: curves.cpu_percent(group.runs) / 100,
            lambda share: percent(Estimate(share)),
        ),
        Row.of(BITS, ["baseline", *sentences]),
    ]


def _throughput(group: Group) -> Estimate:
    return statistics.throughput([curves.timing(run) for run in group.runs])


def _seeds(group: Group) -> str:
    text = "seed " + ", ".join(str(run.seed) for run in group.runs)
    return text + (" (in progress)" if any(run.in_progress for run in group.runs) else "")


def _speedup_rows(pairs: Sequence[Pair]) -> list[Row]:
    def cells(name: str, figure: Callable[[Pair], Estimate], show: Callable[[Estimate], str]) -> Row:
        values = [None if _no_speedup(pair) else figure(pair) for pair in pairs]
        shown = [
            show(value) if value else _no_speedup(pair) for pair, value in zip(pairs, values, strict=True)
        ]
        return Row(name, ["baseline", *shown], [None, *values])

    return [
        cells(SPEEDUP, lambda pair: pair.speedup, lambda value: estimate(value, 2, "x")),
        cells(EFFICIENCY, lambda pair: pair.efficiency, percent),
    ]


def _no_speedup(pair: Pair) -> str:
    if pair.void:
        return "not comparable"
    return "" if math.isfinite(pair.speedup.low) else "too few iterations"


def _return_row(groups: Sequence[Group]) -> Row:
    cells, values = [], [final_return(group) for group in groups]
    for group, value in zip(groups, values, strict=True):
        episodes = min(curves.num_final_episodes(run) for run in group.runs)
        text = estimate(value, 2) if episodes >= LEAST_EPISODES else f"only {count(episodes, 'episode')} yet"
        is_partial = LEAST_EPISODES <= episodes < RETURN_WINDOW
        cells.append(f"{text}, {episodes} episodes" if is_partial else text)
    return Row(RETURN, cells, values)


def footnotes(comparison: Comparison) -> list[str]:
    is_single = all(len(group.runs) == 1 for group in comparison.groups)
    lines = [
        "Throughput is end to end (collect and update) without the first iteration. Intervals are 95 % "
        f"bootstraps: speeds over blocks of iterations and over seeds (from {LEAST_ITERATIONS} iterations on), "
        f"returns over {'episodes' if is_single else f'seeds (from {LEAST_SEEDS} seeds on)'}."
    ]
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
            "algorithm": run.word("training.algorithm", "ppo"),
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


def panels(comparison: Comparison, table: Sequence[Row]) -> list[Panel]:
    groups = comparison.groups
    speeds = next(line.values for line in table if line.name == THROUGHPUT)
    legend = [
        (f"{group.label}: {number(speed.value)} steps/s", theme.series_color(index))
        for index, (group, speed) in enumerate(zip(groups, speeds, strict=True))
    ]
    returns = partial(draw_returns, groups, dash_first=True)
    costs = [(group.label, curves.phase_cost(group.runs)) for group in groups]
    found = [
        Panel("return_over_time", "Return over wall time", partial(returns, over_time(groups)), legend),
        Panel("return_over_steps", "Return over steps", partial(returns, OVER_STEPS), legend),
        Panel("throughput", "Throughput, end to end", partial(draw_throughput, groups), legend),
        Panel("phases", "Where the time goes", partial(draw_phase_bars, costs)),
    ]
    if any(name in run.columns for name in EVALUATIONS for group in groups for run in group.runs):
        draw = partial(draw_evaluations, groups, dash_first=True)
        found.append(Panel("evaluation", "Return of evaluations", draw, legend))
    return found
