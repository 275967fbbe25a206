"""The arithmetic of the reports: pure functions over arrays, deterministic, without files or pictures.

Intervals are percentile bootstraps at 95 %. Iterations of one run are not independent (a slow stretch
lasts for several of them), so they are resampled in blocks of neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
DEVIATIONS = 1.959964  # of a normal distribution, to either side, that hold so much of it
RESAMPLES = 2000
Scores = Sequence[np.ndarray]  # of each game: [..., runs]
LEAST_ITERATIONS = 5  # fewer give no interval
LEAST_SEEDS = 5  # fewer: the seeds themselves are shown


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; low and high are NaN if there is too little data for one."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True)
class SeedEstimate(Estimate):
    """A mean over seeds, with the value of each seed."""

    seeds: tuple[float, ...] = ()


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean of the last axis: a quarter (rounded down) of the values is cut off at either
    end.
    """
    ordered = np.sort(np.asarray(values, dtype=float), axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def interval(samples: np.ndarray) -> tuple[float, float]:
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(samples, [tail, 100.0 - tail])
    return float(low), float(high)


def bootstrap(values: Sequence[float] | np.ndarray, *, seed: int = 0) -> Estimate:
    """The mean of the finite values, with its interval. Equal values have none: all their resamples are
    the same.
    """
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        return Estimate(float("nan"))
    value = float(finite.mean())
    if finite.min() == finite.max():
        return Estimate(value)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, finite.size, size=(RESAMPLES, finite.size))
    return Estimate(value, *interval(np.array([finite[pick].mean() for pick in picks])))


def over_seeds(values: Sequence[float]) -> SeedEstimate:
    """Below five values there is no percentile interval: it would be too narrow."""
    finite = tuple(float(value) for value in values if np.isfinite(value))
    if len(finite) < LEAST_SEEDS:
        return SeedEstimate(float(np.mean(finite)) if finite else float("nan"), seeds=finite)
    found = bootstrap(finite)
    return SeedEstimate(found.value, found.low, found.high, finite)


def rate(successes: float, trials: int) -> Estimate:
    """A share of successes with Wilson's interval, which has a width even if all or none succeeded."""
    if trials == 0:
        return Estimate(float("nan"))
    share, squared = successes / trials, DEVIATIONS**2
    middle = (successes + squared / 2) / (trials + squared)
    half = DEVIATIONS * np.sqrt(trials * share * (1 - share) + squared / 4) / (trials + squared)
    return Estimate(share, max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def difference_of_rates(above: Estimate, below: Estimate) -> Estimate:
    """Newcombe's interval: both Wilson intervals, as if their errors were independent."""
    value = above.value - below.value
    down = np.hypot(above.value - above.low, below.high - below.value)
    up = np.hypot(above.high - above.value, below.value - below.low)
    return Estimate(value, float(value - down), float(value + up))


# --- scores of several games, each with several runs --------------------------------------------------------


def iqm_score(scores: Scores) -> np.ndarray:
    return iqm(np.concatenate(scores, axis=-1))


def probability_of_improvement(ours: Scores, others: Scores) -> np.ndarray:
    """Probability that a run of `ours` is better than one of `others`, over pairs within a game and then over games;
    ties count half.
    """
    shares = []
    for game, other in zip(ours, others, strict=True):
        above, below = game[..., :, None], other[..., None, :]
        shares.append(((above > below) + 0.5 * (above == below)).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def draw_runs(scores: Scores, generator: np.random.Generator) -> list[np.ndarray]:
    """For each game [RESAMPLES, runs]: runs are drawn within a game, so that every game stays in."""
    return [generator.integers(0, len(game), size=(RESAMPLES, len(game))) for game in scores]


def stratified_bootstrap(statistic: Callable[..., np.ndarray], *several: Scores, seed: int = 0) -> Estimate:
    """`statistic(*several)`; without an interval for a handful of runs, or if no game has a second one."""
    if not all(several):
        return Estimate(float("nan"))
    value = float(statistic(*several))
    sizes = [[len(game) for game in scores] for scores in several]
    if any(sum(each) < LEAST_SEEDS or max(each) == 1 for each in sizes):
        return Estimate(value)
    generator = np.random.default_rng(seed)
    return Estimate(value, *percentiles(statistic, several, [draw_runs(each, generator) for each in several]))


def percentiles(
    statistic: Callable[..., np.ndarray], several: Sequence[Scores], picks: Sequence[Sequence[np.ndarray]]
) -> tuple[float, float]:
    """The interval of `statistic(*several)` when runs are drawn as `picks` says."""
    drawn = [
        [game[pick] for game, pick in zip(scores, chosen, strict=True)]
        for scores, chosen in zip(several, picks, strict=True)
    ]
    return interval(statistic(*drawn))


# --- curves -------------------------------------------------------------------------------------------------


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` finite-or-not entries; NaNs are skipped, all-NaN windows stay NaN."""
    values = np.asarray(values, dtype=float)
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - max(1, window))
    number = counts[ends] - counts[starts]
    return np.where(number > 0, (sums[ends] - sums[starts]) / np.maximum(number, 1), np.nan)


def recent_mean(
    positions: np.ndarray, values: np.ndarray, at: np.ndarray, *, window: int, minimum: int
) -> np.ndarray:
    """At each of `at`: the mean of the last `window` values whose position is not behind it; NaN before
    `minimum`."""
    order = np.argsort(positions, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(values[order])])
    ends = np.searchsorted(positions[order], at, side="right")
    starts = np.maximum(0, ends - window)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(ends >= minimum, (sums[ends] - sums[starts]) / (ends - starts), np.nan)


@dataclass(frozen=True)
class Timing:
    """Steps and seconds of the iterations of one run."""

    steps: np.ndarray
    seconds: np.ndarray

    @property
    def throughput(self) -> float:
        return float(self.steps.sum() / self.seconds.sum()) if self.seconds.sum() > 0 else float("nan")


def throughput(timings: Sequence[Timing], *, seed: int = 0) -> Estimate:
    """Mean steps per second over the runs, with an interval from resampled runs and blocks of iterations."""
    value = float(np.mean([timing.throughput for timing in timings]))
    if _too_few(timings):
        return Estimate(value)
    return Estimate(value, *interval(_resampled_throughput(timings, np.random.default_rng(seed))))


def speedup(baseline: Sequence[Timing], other: Sequence[Timing], *, seed: int = 0) -> Estimate:
    """Throughput of `other` over that of `baseline`, both resampled independently."""
    value = throughput(other).value / throughput(baseline).value
    if _too_few(baseline) or _too_few(other):
        return Estimate(value)
    generator = np.random.default_rng(seed)
    above = _resampled_throughput(other, generator)
    below = _resampled_throughput(baseline, generator)
    return Estimate(value, *interval(above / below))


def _too_few(timings: Sequence[Timing]) -> bool:
    counts = [len(timing.steps) for timing in timings]
    return min(counts) == 0 or sum(counts) < LEAST_ITERATIONS


def block_length(count: int) -> int:
    """About the cube root, the usual rate for block bootstraps."""
    return max(1, round(count ** (1 / 3)))


def _resampled_throughput(timings: Sequence[Timing], generator: np.random.Generator) -> np.ndarray:
    per_run = np.stack([_resampled_run(timing, generator) for timing in timings])
    chosen = generator.integers(0, len(timings), size=(RESAMPLES, len(timings)))
    return per_run[chosen, np.arange(RESAMPLES)[:, None]].mean(axis=1)


def _resampled_run(timing: Timing, generator: np.random.Generator) -> np.ndarray:
    """Circular block bootstrap of one run's iterations."""
    count = len(timing.steps)
    length = block_length(count)
    starts = generator.integers(0, count, size=(RESAMPLES, -(-count // length)))
    picks = (starts[:, :, None] + np.arange(length)) % count
    picks = picks.reshape(RESAMPLES, -1)[:, :count]
    return timing.steps[picks].sum(axis=1) / timing.seconds[picks].sum(axis=1)


def mean_curve(
    positions: Sequence[np.ndarray], values: Sequence[np.ndarray], *, points: int = 200
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Several runs on one grid: positions, mean, low, high. Only where all of them have values; without
    low and high (NaN) below five runs.
    """
    curves = [_finite(x, y) for x, y in zip(positions, values, strict=True)]
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return (np.empty(0),) * 4
    if len(curves) == 1:
        x, y = curves[0]
        return x, y, np.full(len(x), np.nan), np.full(len(x), np.nan)
    grid = curves[0][0]
    if any(not np.array_equal(x, grid) for x, _ in curves):
        start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        grid = np.linspace(start, end, points if end >= start else 0)
    stacked = np.stack([np.interp(grid, x, y) for x, y in curves])
    if len(curves) < LEAST_SEEDS:
        return grid, stacked.mean(axis=0), np.full(len(grid), np.nan), np.full(len(grid), np.nan)
    picks = np.random.default_rng(0).integers(0, len(curves), size=(RESAMPLES, len(curves)))
    samples = stacked[picks].mean(axis=1)
    low, high = np.percentile(samples, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)], axis=0)
    return grid, stacked.mean(axis=0), low, high


def _finite(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = np.isfinite(x) & np.isfinite(y)
    return x[keep], y[keep]
