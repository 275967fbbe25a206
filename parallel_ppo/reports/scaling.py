"""How throughput grows with workers: measured sizes, a model of the rest, and what stands in the way.

The model of an iteration is Amdahl's: `serial + parallel / workers`. With three or more measured sizes up to the
physical cores it is fitted; with fewer it comes from the seconds in which only the coordinator worked. Work that
comes in slices and lanes cannot be divided evenly among any number of workers, so there is a second figure for
exactly the measured shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from parallel_ppo.reports import statistics
from parallel_ppo.reports.curves import peak_memory_mb, timing
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import Amdahl, Estimate, Timing

EXTRAPOLATED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
POINTS_TO_FIT = 3
DEFAULT_SLICE = 8
DEFAULT_LANE = 64


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
    t_other: float
    t_coordinator: float
    idle_share: float
    peak_rss_mb: float
    policy_sha256: str


@dataclass(frozen=True)
class SizeSummary:
    """All repeats of one world size."""

    world_size: int
    repeats: int
    fitted: bool
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
    t_other: float
    t_coordinator: float
    idle_share: float
    peak_rss_mb: float


@dataclass(frozen=True)
class Shape:
    """What the work of an iteration is cut into."""

    num_slices: int
    num_lanes: int


@dataclass(frozen=True)
class Model:
    amdahl: Amdahl
    source: str
    steps_per_iteration: float

    def fps(self, workers: float) -> float:
        return float(self.steps_per_iteration / self.amdahl.seconds(workers))


def measure(run: Run, *, world_size: int, repeat: int, warmup: int) -> Measurement:
    kept = timing(run, skip=warmup)

    def mean(column: str) -> float:
        values = run.column(column)[warmup:]
        values = values[np.isfinite(values)]
        return float(values.mean()) if values.size else float("nan")

    seconds = float(kept.seconds.mean())
    named = [mean(column) for column in ("t_rollout", "t_learn", "t_sync")]
    return Measurement(
        world_size=world_size,
        repeat=repeat,
        iterations=len(kept.seconds),
        steps_per_iteration=float(kept.steps.mean()),
        fps=kept.throughput,
        t_iter=seconds,
        t_rollout=named[0],
        t_learn=named[1],
        t_sync=named[2],
        t_other=max(0.0, seconds - float(np.nansum(named))),
        t_coordinator=mean("t_coordinator"),
        idle_share=mean("idle_share"),
        peak_rss_mb=peak_memory_mb([run]),
        policy_sha256=run.policy_sha256[-1] or "",
    )


def shape_of(run: Run) -> Shape:
    """Slices and lanes, by the defaults of the design where the settings leave them open."""
    num_envs = int(run.setting("env.num_envs", 1))
    slice_envs = run.setting("env.slice_envs") or max(
        size for size in range(1, min(DEFAULT_SLICE, num_envs) + 1) if num_envs % size == 0
    )
    slices = max(1, num_envs // int(slice_envs))
    share = max(1, int(run.setting("training.batch_size", slices)) // slices)
    whole = share if run.setting("training.policy") == "mlp" else DEFAULT_LANE
    lane = int(run.setting("training.lane_samples") or whole)
    return Shape(num_slices=slices, num_lanes=slices * -(-share // lane))


def summarise(
    measurements: Sequence[Measurement],
    timings: dict[int, list[Timing]],
    *,
    physical_cores: int,
    shape: Shape,
) -> list[SizeSummary]:
    sizes = sorted({item.world_size for item in measurements})
    base = timings[sizes[0]]
    prediction = predict_from_smallest(measurements, shape=shape)
    summaries = []
    for size in sizes:
        runs = [item for item in measurements if item.world_size == size]
        fps = spread(runs, statistics.throughput(timings[size]))
        ratio = statistics.speedup(base, timings[size]) if size != sizes[0] else Estimate(1.0, 1.0, 1.0)
        summaries.append(
            SizeSummary(
                world_size=size,
                repeats=len(runs),
                fitted=size <= physical_cores,
                fps=fps.value,
                fps_low=fps.low,
                fps_high=fps.high,
                speedup=ratio.value,
                speedup_low=ratio.low,
                speedup_high=ratio.high,
                efficiency=ratio.value * sizes[0] / size,
                predicted_fps=prediction[size],
                **{name: _mean(runs, name) for name in AVERAGED},
                peak_rss_mb=max(item.peak_rss_mb for item in runs),
            )
        )
    return summaries


AVERAGED = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_other", "t_coordinator", "idle_share")


def _mean(runs: Sequence[Measurement], name: str) -> float:
    return float(np.mean([getattr(item, name) for item in runs]))


def spread(runs: Sequence[Measurement], estimate: Estimate) -> Estimate:
    """The bootstrap interval, widened to hold every single run."""
    values = [item.fps for item in runs]
    low = float(np.nanmin([estimate.low, *values]))
    high = float(np.nanmax([estimate.high, *values]))
    return Estimate(estimate.value, low, high)


def predict_from_smallest(measurements: Sequence[Measurement], *, shape: Shape) -> dict[int, float]:
    """Throughput at every size from the phases of each run of the smallest one; NaN without t_coordinator."""
    sizes = sorted({item.world_size for item in measurements})
    runs = [item for item in measurements if item.world_size == sizes[0]]
    return {
        size: float(
            np.mean(
                [
                    run.steps_per_iteration / seconds_at(size, asdict(run), base=sizes[0], shape=shape)
                    for run in runs
                ]
            )
        )
        for size in sizes
    }


def seconds_at(workers: int, phases: Mapping[str, float], *, base: int, shape: Shape) -> float:
    """Seconds of an iteration with `workers`, from the phases measured with `base` workers."""
    collect = phases["t_rollout"] * busiest(shape.num_slices, workers) / busiest(shape.num_slices, base)
    divisible = phases["t_iter"] - phases["t_rollout"] - phases["t_coordinator"]
    learn = divisible * busiest(shape.num_lanes, workers) / busiest(shape.num_lanes, base)
    return phases["t_coordinator"] + collect + learn


def busiest(pieces: int, workers: int) -> float:
    """The share of the busiest worker when `pieces` are dealt as evenly as can be."""
    return -(-pieces // workers) / pieces


def fit(summaries: Sequence[SizeSummary], *, steps_per_iteration: float) -> Model | None:
    """Amdahl's law from the sizes that had a core for each worker; None where nothing tells serial from parallel."""
    usable = [summary for summary in summaries if summary.fitted] or list(summaries[:1])
    first = usable[0]
    if len(usable) >= POINTS_TO_FIT or (len(usable) == 2 and not np.isfinite(first.t_coordinator)):
        amdahl = statistics.fit_amdahl([item.world_size for item in usable], [item.t_iter for item in usable])
        return Model(amdahl, f"fitted to {len(usable)} measured sizes", steps_per_iteration)
    if not np.isfinite(first.t_coordinator):
        return None
    amdahl = Amdahl(
        serial=first.t_coordinator, parallel=(first.t_iter - first.t_coordinator) * first.world_size
    )
    return Model(
        amdahl, f"from the coordinator-only share at {first.world_size} worker(s)", steps_per_iteration
    )


@dataclass(frozen=True)
class Extrapolation:
    workers: int
    fps: float
    fps_this_shape: float
    speedup: float


def extrapolate(model: Model, summaries: Sequence[SizeSummary], *, shape: Shape) -> list[Extrapolation]:
    """Throughput to 128 cores: with work enough for all of them, and at exactly the measured shape."""
    first = summaries[0]
    phases = {name: getattr(first, name) for name in AVERAGED}
    phases["t_coordinator"] = model.amdahl.serial
    rows = []
    for workers in EXTRAPOLATED_SIZES:
        if workers < first.world_size:
            continue
        shaped = model.steps_per_iteration / seconds_at(workers, phases, base=first.world_size, shape=shape)
        fps = model.fps(workers)
        rows.append(Extrapolation(workers, fps, min(shaped, fps), fps / model.fps(1)))
    return rows
