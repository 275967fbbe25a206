"""Comparing groups of runs: speed, memory, time to a return, whether the learning was the same bits.

The first group is the baseline; every other one is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from parallel_ppo.reports import statistics
from parallel_ppo.reports.comparability import (
    Identity,
    busy_machine,
    comparability_warnings,
    identity,
    same_work,
)
from parallel_ppo.reports.curves import (
    RETURN_WINDOW,
    column_mean,
    cpu_percent,
    final_returns,
    peak_memory_mb,
    phase_cost,
    return_curve,
    timing,
)
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.statistics import Estimate


@dataclass(frozen=True)
class GroupResult:
    """What one group did, on its own."""

    label: str
    directories: list[str]
    kind: str
    seeds: list[int | None]
    env: str
    policy: str
    n_epochs: int | None
    workers: int
    threads: int
    machine: str
    in_progress: bool
    iterations: int
    steps: int
    wall_time: float
    throughput: Estimate
    collect_fps: float
    learn_share: float
    final_return: Estimate
    peak_rss_mb: float
    cpu_percent: float
    seconds_per_1000_steps: dict[str, float]
    seconds_to_return: dict[str, float]


@dataclass(frozen=True)
class PairResult:
    """One group against the baseline."""

    label: str
    baseline: str
    speedup: Estimate
    efficiency: Estimate
    identity: Identity
    same_work: bool
    return_at_equal_time: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    groups: list[GroupResult]
    pairs: list[PairResult]
    thresholds: list[float]
    warnings: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not known is null."""
        return json_ready(asdict(self))


def compare(groups: Sequence[Group], *, thresholds: Sequence[float] | None = None) -> Comparison:
    assert len(groups) >= 2, "a comparison needs a baseline and something else"
    chosen = list(thresholds) if thresholds else default_thresholds(groups)
    baseline = groups[0]
    return Comparison(
        groups=[describe(group, chosen) for group in groups],
        pairs=[compare_pair(baseline, group) for group in groups[1:]],
        thresholds=chosen,
        warnings=[
            *[line for group in groups[1:] for line in comparability_warnings(baseline, group)],
            *[line for group in groups for line in busy_machine(group)],
        ],
        notes=[note for group in groups for run in group.runs for note in run.notes],
    )


def describe(group: Group, thresholds: Sequence[float]) -> GroupResult:
    runs, first = group.runs, group.first
    cost = phase_cost(runs)
    total = sum(cost.values())
    return GroupResult(
        label=group.label,
        directories=[str(run.path) for run in runs],
        kind=first.kind,
        seeds=[run.seed for run in runs],
        env=short_env(first.env_id),
        policy=str(first.setting("training.policy", "unknown")),
        n_epochs=first.setting("training.n_epochs"),
        workers=first.num_workers,
        threads=first.num_threads,
        machine=str(first.machine.get("cpu_model", "unknown")),
        in_progress=any(run.in_progress for run in runs),
        iterations=max(len(run) for run in runs),
        steps=int(max(run.steps[-1] for run in runs)),
        wall_time=float(np.mean([run.wall_time[-1] for run in runs])),
        throughput=statistics.throughput([timing(run) for run in runs]),
        collect_fps=column_mean(runs, "rollout_fps"),
        learn_share=cost["learn"] / total if total > 0 else float("nan"),
        final_return=final_return(group),
        peak_rss_mb=peak_memory_mb(runs),
        cpu_percent=cpu_percent(runs),
        seconds_per_1000_steps=cost,
        seconds_to_return={f"{threshold:g}": seconds_to_return(group, threshold) for threshold in thresholds},
    )


def final_return(group: Group) -> Estimate:
    """Mean of the last episodes: over seeds where there are several, over episodes otherwise."""
    if len(group.runs) == 1:
        return statistics.bootstrap(final_returns(group.first))
    means = [returns.mean() for run in group.runs if len(returns := final_returns(run))]
    return statistics.bootstrap(means)


def seconds_to_return(group: Group, threshold: float) -> float:
    """Mean over the seeds; NaN unless all of them reach it."""
    times = [statistics.time_to_return(run.wall_time, return_curve(run), threshold) for run in group.runs]
    return float(np.mean(times))


def default_thresholds(groups: Sequence[Group]) -> list[float]:
    """A quarter, half and three quarters of the way from the first return to the best that all groups reached."""
    curves = [return_curve(run) for group in groups for run in group.runs]
    curves = [curve[np.isfinite(curve)] for curve in curves]
    if any(len(curve) == 0 for curve in curves):
        return []
    start = max(float(curve[0]) for curve in curves)
    best = min(float(curve.max()) for curve in curves)
    if best - start <= 1e-6 * max(1.0, abs(best)):
        return []
    return sorted({float(f"{start + share * (best - start):.3g}") for share in (0.25, 0.5, 0.75)})


def compare_pair(baseline: Group, other: Group) -> PairResult:
    ratio = statistics.speedup([timing(run) for run in baseline.runs], [timing(run) for run in other.runs])
    per_core = cores_used(baseline) / cores_used(other)
    return PairResult(
        label=other.label,
        baseline=baseline.label,
        speedup=ratio,
        efficiency=Estimate(ratio.value * per_core, ratio.low * per_core, ratio.high * per_core),
        identity=identity(baseline, other),
        same_work=same_work(baseline, other),
        return_at_equal_time=return_at_equal_time(baseline, other),
    )


def cores_used(group: Group) -> int:
    """Workers of a parallel run, threads of a sequential one."""
    return group.first.num_threads if group.first.kind == "sequential" else group.first.num_workers


def return_at_equal_time(baseline: Group, other: Group) -> dict[str, float]:
    """Mean return of each group when the shorter of them ended."""
    end = min(run.wall_time[-1] for group in (baseline, other) for run in group.runs)
    values = {"seconds": float(end)}
    for group in (baseline, other):
        at_end = [_last_at(run.wall_time, return_curve(run), end) for run in group.runs]
        values[group.label] = float(np.mean(at_end))
    return values


def _last_at(times: np.ndarray, values: np.ndarray, end: float) -> float:
    known = values[(times <= end) & np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def json_ready(value: Any) -> Any:
    """NaN and infinities as null, NumPy numbers as Python's."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


__all__ = ["RETURN_WINDOW", "Comparison", "GroupResult", "PairResult", "compare", "json_ready"]
