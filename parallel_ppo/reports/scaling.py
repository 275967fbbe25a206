"""How throughput grows with workers: measured, predicted from the smallest size, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from parallel_ppo.machine.iteration_model import UNLIMITED, Iteration, Pieces, from_records, limited_by
from parallel_ppo.machine.iteration_simulation import Costs, simulated_seconds
from parallel_ppo.printable import count
from parallel_ppo.reports import statistics
from parallel_ppo.reports.curves import peak_memory_mb, timing
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import Estimate

MANY_CORES = Pieces(slices=64, lanes=128, updates=32)  # of config/ppo_many_cores.yaml
MANY_CORES_STEPS = 512 * 128  # of its iteration
EXTRAPOLATED_SIZES = (2, 4, 8, 16, 32, 64, 128)
PHASES = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_coordinator")


@dataclass(frozen=True)
class SizedRun:
    """A run of the benchmark and its place in it."""

    run: Run
    world_size: int
    repeat: int


@dataclass(frozen=True)
class Measurement:
    """One run without its warm-up; seconds are means per iteration."""

    world_size: int
    repeat: int
    iterations: int
    steps_per_iteration: float
    fps: float
    t_iter: float
    t_rollout: float
    t_learn: float
    t_sync: float
    t_coordinator: float
    idle_share: float
    peak_rss_mb: float
    policy_sha256: str


@dataclass(frozen=True)
class SizeSummary:
    """All repeats of one world size."""

    world_size: int
    repeats: int
    has_cores: bool
    fps: float
    fps_low: float
    fps_high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    predicted_fps: float
    t_iter: float
    t_rollout: float
    t_learn: float
    t_sync: float
    t_coordinator: float
    idle_share: float
    peak_rss_mb: float

    @property
    def t_other(self) -> float:
        return max(0.0, self.t_iter - self.t_rollout - self.t_learn - self.t_sync)


@dataclass(frozen=True)
class Extrapolation:
    workers: int
    fps: float
    fps_this_shape: float
    speedup: float


def measure(item: SizedRun, warmup: int) -> Measurement:
    run, kept = item.run, timing(item.run, skip=warmup)
    return Measurement(
        world_size=item.world_size,
        repeat=item.repeat,
        iterations=len(kept.seconds),
        steps_per_iteration=float(kept.steps.mean()),
        fps=kept.throughput,
        **{name: mean([run], warmup, name) for name in (*PHASES, "idle_share")},
        peak_rss_mb=peak_memory_mb([run]),
        policy_sha256=run.policy_sha256[-1] or "",
    )


def mean(runs: Sequence[Run], warmup: int, name: str) -> float:
    """Of one column, without what was not measured (no CPU sample yet), with what lies between iterations."""
    columns = [run.iteration_seconds() if name == "t_iter" else run.column(name) for run in runs]
    values = np.concatenate([column[warmup:] for column in columns])
    values = values[np.isfinite(values) & ((values > 0) | (name != "cpu_percent"))]
    return float(values.mean()) if values.size else float("nan")


def iterations(runs: Sequence[SizedRun], *, warmup: int, cores: int, pieces: Pieces) -> dict[int, Iteration]:
    """The mean iteration of each size."""
    found = {}
    for size in sorted({item.world_size for item in runs}):
        of_size = [item.run for item in runs if item.world_size == size]
        found[size] = from_records(partial(mean, of_size, warmup), pieces, workers=size, cores=cores)
    return found


def summarise(
    runs: Sequence[SizedRun],
    measurements: Sequence[Measurement],
    modelled: dict[int, Iteration],
    *,
    warmup: int,
    cores: int,
) -> list[SizeSummary]:
    """Sizes in order; each one's throughput is also predicted from the smallest."""
    smallest = min(modelled)
    timings = {
        size: [timing(item.run, skip=warmup) for item in runs if item.world_size == size] for size in modelled
    }
    summaries = []
    for size in sorted(modelled):
        of_size = [item for item in measurements if item.world_size == size]
        fps = _spread(of_size, statistics.throughput(timings[size]))
        ratio = Estimate(1.0, 1.0, 1.0)
        if size != smallest:
            ratio = statistics.speedup(timings[smallest], timings[size])
        summaries.append(
            SizeSummary(
                world_size=size,
                repeats=len(of_size),
                has_cores=size <= cores,
                fps=fps.value,
                fps_low=fps.low,
                fps_high=fps.high,
                speedup=ratio.value,
                speedup_low=ratio.low,
                speedup_high=ratio.high,
                efficiency=ratio.value * smallest / size,
                predicted_fps=of_size[0].steps_per_iteration / modelled[smallest].seconds(size),
                **{
                    name: float(np.mean([getattr(item, name) for item in of_size]))
                    for name in (*PHASES, "idle_share")
                },
                peak_rss_mb=max(item.peak_rss_mb for item in of_size),
            )
        )
    return summaries


def _spread(runs: Sequence[Measurement], estimate: Estimate) -> Estimate:
    """The bootstrap interval, widened to hold every single run."""
    values = [item.fps for item in runs]
    low = float(np.nanmin([estimate.low, *values]))
    high = float(np.nanmax([estimate.high, *values]))
    return Estimate(estimate.value, low, high)


def extrapolate(smallest: Iteration, steps: float) -> list[Extrapolation]:
    """Throughput to 128 cores: with work enough for all of them, and at exactly the measured shape."""
    this_shape = smallest._replace(cores=UNLIMITED)
    enough = this_shape._replace(pieces=smallest.pieces._replace(slices=UNLIMITED, lanes=UNLIMITED))
    first = smallest.workers
    rows = []
    for workers in (first, *(size for size in EXTRAPOLATED_SIZES if size > first)):
        fps, shaped = (steps / model.seconds(workers) for model in (enough, this_shape))
        speedup = enough.seconds(1) / enough.seconds(workers)
        rows.append(Extrapolation(workers, fps, min(shaped, fps), speedup))
    return rows


def simulated(
    alone: Costs,
    together: Costs,
    summaries: Sequence[SizeSummary],
    pieces: Pieces,
    *,
    steps: float,
    cores: int,
) -> list[str]:
    """What the simulation says of the measured sizes, and of machines that are not at hand."""
    lines = []
    for summary in summaries:
        costs = alone if summary.world_size == 1 else together
        fps = steps / simulated_seconds(costs, pieces, workers=summary.world_size, cores=cores)
        inside = summary.fps_low <= fps <= summary.fps_high
        lines.append(
            f"Simulated with {count(summary.world_size, 'worker')}: {fps:,.0f} steps/s, measured"
            f" {summary.fps:,.0f} ({summary.fps_low:,.0f} to {summary.fps_high:,.0f}):"
            f" {fps / summary.fps - 1:+.1%}" + (", within the spread." if inside else ".")
        )
    for name, factor, shape in (
        ("this shape", 1.0, pieces),
        ("config/ppo_many_cores.yaml", MANY_CORES_STEPS / steps, MANY_CORES),
    ):  # the coordinator's own work grows with the samples, at most
        one, many = (costs._replace(rest=costs.rest * factor) for costs in (alone, together))
        base = simulated_seconds(one, shape, workers=1, cores=1)
        shares = [
            f"{size}: {base / size / simulated_seconds(many, shape, workers=size, cores=size):.0%}"
            for size in EXTRAPOLATED_SIZES
        ]
        lines.append(
            f"SIMULATED efficiency, not measured, one core for each worker, {name}: {', '.join(shares)}."
        )
    return lines


def sentences(
    summaries: Sequence[SizeSummary],
    measurements: Sequence[Measurement],
    modelled: dict[int, Iteration],
    extrapolation: Sequence[Extrapolation],
) -> list[str]:
    """Most important first."""
    usable = [summary for summary in summaries if summary.has_cores] or list(summaries[:1])
    smallest, largest = modelled[summaries[0].world_size], modelled[usable[-1].world_size]
    lines = [f"With {count(usable[-1].world_size, 'worker')} limited by {limited_by(largest)}."]
    for summary in usable[1:]:
        inside = summary.fps_low <= summary.predicted_fps <= summary.fps_high
        off = summary.predicted_fps / summary.fps - 1
        lines.append(
            f"Predicted for {summary.world_size} workers from {summaries[0].world_size}: "
            f"{summary.predicted_fps:,.0f} steps/s; "
            f"measured {summary.fps:,.0f} ({summary.fps_low:,.0f} to {summary.fps_high:,.0f}): "
            + ("within the spread." if inside else f"outside the spread, off by {off:+.1%}.")
        )
    serial, last = 1 - (smallest.collect + smallest.learn) / smallest.total, extrapolation[-1]
    lines.append(
        f"{serial:.2%} of the time with {count(smallest.workers, 'worker')} does not divide. "
        f"EXTRAPOLATION to {last.workers} cores, not measured: {last.fps:,.0f} steps/s ({last.speedup:.1f}x) "
        f"with work enough for all, {last.fps_this_shape:,.0f} at this shape."
    )
    if last.fps_this_shape < 0.8 * last.fps:
        lines.append(
            f"At this shape {count(smallest.pieces.slices, 'slice')} and "
            f"{count(smallest.pieces.lanes, 'lane')} per minibatch "
            "set the limit: raise env.num_envs and training.batch_size with the cores."
        )
    beyond = [str(summary.world_size) for summary in summaries if not summary.has_cores]
    if beyond:
        lines.append(f"{', '.join(beyond)} workers are more than the physical cores.")
    return [*lines, same_bits(measurements)]


def same_bits(measurements: Sequence[Measurement]) -> str:
    hashes = {item.policy_sha256 for item in measurements if item.policy_sha256}
    if len(hashes) == 1:
        return f"One policy_sha256 in all {len(measurements)} runs: every size learned the same bits."
    return (
        f"{len(hashes)} different policy_sha256 in {len(measurements)} runs: the sizes did NOT learn the "
        "same bits."
    )
