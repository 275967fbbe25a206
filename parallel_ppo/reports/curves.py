"""Curves and means of runs: returns, phases, resources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import Timing, recent_mean, smooth

RETURN_WINDOW = 100  # episodes
LEAST_EPISODES = 20  # fewer have no mean worth showing
PHASE_COLUMNS = {"rollout": "t_rollout", "learn": "t_learn", "sync": "t_sync"}


def return_curve(run: Run, *, window: int = RETURN_WINDOW) -> np.ndarray:
    """Per iteration, the mean return of the last `window` episodes; NaN while there are too few."""
    if run.episodes is None:
        return run.column("episode_return_mean")
    ended, returns = run.episodes.iteration, run.episodes.returns
    return recent_mean(ended, returns, run.column("iteration"), window=window, minimum=LEAST_EPISODES)


def iteration_returns(run: Run) -> np.ndarray:
    """Per iteration, the mean return of the episodes that ended in it; NaN if none did."""
    if run.episodes is None:
        return run.column("episode_return_mean")
    place = np.searchsorted(run.column("iteration"), run.episodes.iteration)
    kept = place < len(run)
    sums = np.bincount(place[kept], weights=run.episodes.returns[kept], minlength=len(run))
    counts = np.bincount(place[kept], minlength=len(run))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def final_returns(run: Run) -> np.ndarray:
    """The returns of the last episodes, a full window at most; none if too few have ended."""
    if run.episodes is None:
        known = run.column("episode_return_mean")
        return known[np.isfinite(known)][-1:]
    returns = run.episodes.returns[-RETURN_WINDOW:]
    return returns if len(returns) >= LEAST_EPISODES else returns[:0]


def num_final_episodes(run: Run) -> int:
    """Episodes in the last window. A log without episodes is assumed to have a full one."""
    return RETURN_WINDOW if run.episodes is None else min(RETURN_WINDOW, len(run.episodes.returns))


def returns_near(run: Run, steps: float, *, within: float) -> np.ndarray:
    """Returns of the episodes that ended within `within` steps of `steps`."""
    if run.episodes is None:
        return np.empty(0)
    position = run.episodes.step
    return run.episodes.returns[np.abs(position - steps) <= within]


def smoothed(values: np.ndarray) -> np.ndarray:
    """Over a twentieth of a curve, so that short and long ones look equally smooth. Gaps stay."""
    window = max(1, min(50, len(values) // 20))
    return np.where(np.isfinite(values), smooth(values, window), np.nan)


def warm_up(run: Run) -> int:
    """Iterations to leave out of timings: the first faults memory in and fills caches."""
    return 1 if len(run) > 2 else 0


def timing(run: Run, *, skip: int | None = None) -> Timing:
    first = warm_up(run) if skip is None else skip
    steps, seconds = run.iteration_steps()[first:], run.iteration_seconds()[first:]
    keep = np.isfinite(steps) & np.isfinite(seconds) & (seconds > 0)
    return Timing(steps=steps[keep], seconds=seconds[keep])


def _phase_seconds(run: Run) -> dict[str, float]:
    """Means over all iterations but the warm-up; `other` is the rest of an iteration's time."""
    phases = {name: np.nan_to_num(run.column(column)) for name, column in PHASE_COLUMNS.items()}
    phases["learn"] = np.maximum(0.0, phases["learn"] - phases["sync"])  # t_sync is part of t_learn
    phases["other"] = np.maximum(0.0, run.iteration_seconds() - sum(phases.values()))
    return {name: float(seconds[warm_up(run) :].sum()) for name, seconds in phases.items()}


def phase_cost(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds of each phase per 1,000 steps, over all iterations but the warm-up."""
    steps = float(sum(run.iteration_steps()[warm_up(run) :].sum() for run in runs))
    seconds = [_phase_seconds(run) for run in runs]
    return {name: 1000.0 * sum(each[name] for each in seconds) / steps for name in (*PHASE_COLUMNS, "other")}


def column_mean(runs: Sequence[Run], name: str) -> float:
    values = np.concatenate([run.column(name)[warm_up(run) :] for run in runs])
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else float("nan")


def cpu_percent(runs: Sequence[Run]) -> float:
    """Mean CPU use of all processes; 0 is what a run writes before its first sample."""
    values = np.concatenate([run.column("cpu_percent") for run in runs])
    values = values[values > 0]
    return float(values.mean()) if values.size else float("nan")


def peak_memory_mb(runs: Sequence[Run]) -> float:
    """The highest resident memory that the runs saw, workers included."""
    peaks = []
    for run in runs:
        column = run.column("rss_mb")
        peaks += list(column[np.isfinite(column)])
        summary_peak = (run.summary or {}).get("peak_rss_mb")
        if isinstance(summary_peak, int | float):
            peaks.append(float(summary_peak))
    return max(peaks, default=float("nan"))
