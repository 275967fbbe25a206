"""What a scaling benchmark measured: tables, a picture and what limits each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration, Pieces, from_records, limited_by
from parallel_ppo.printable import count
from parallel_ppo.reports import theme
from parallel_ppo.reports.command_line import make_directory
from parallel_ppo.reports.comparison import busy_machine
from parallel_ppo.reports.curves import peak_memory_mb, timing
from parallel_ppo.reports.document import Document, Row, Table, as_text, to_csv, to_json
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.plots import draw_phase_bars
from parallel_ppo.reports.runs import METRICS, Run
from parallel_ppo.reports.theme import Panel
from parallel_ppo.storage.files import write_atomically

TIMES = ("t_iter", "t_rollout", "t_learn", "t_sync", "t_coordinator")


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
    """All repeats of one number of workers: means, with the lowest and highest repeat."""

    world_size: int
    repeats: int
    has_cores: bool
    fps: float
    fps_low: float
    fps_high: float
    speedup: float  # over the smallest size
    speedup_low: float  # of the repeats, which were interleaved
    speedup_high: float
    efficiency: float
    t_iter: float
    t_rollout: float
    t_learn: float
    t_sync: float
    t_coordinator: float
    idle_share: float
    peak_rss_mb: float


def build_report(runs: Sequence[SizedRun], *, warmup: int, cores: int, pieces: Pieces) -> Document:
    for item in runs:
        if len(item.run) <= warmup:
            raise InputError(
                f"{item.run.path} has {count(len(item.run), 'iteration')}, all of them warm-up; raise "
                "--total-iters"
            )
    measurements = [measure(item, warmup) for item in runs]
    summaries = summarize(measurements, cores)
    largest = max((row.world_size for row in summaries if row.has_cores), default=summaries[0].world_size)
    iteration = mean_iteration(runs, largest, warmup=warmup, cores=cores, pieces=pieces)
    beyond = [str(row.world_size) for row in summaries if not row.has_cores]
    notes = [f"With {count(largest, 'worker')} limited by {limited_by(iteration)}."]
    notes += [f"{', '.join(beyond)} workers are more than the {cores} physical cores."] if beyond else []
    busy = busy_machine(Group("", tuple(item.run for item in runs)))
    steps = measurements[0].steps_per_iteration
    return Document(
        headline=_headline(summaries, runs[0].run),
        subtitle=_subtitle(runs[0].run, cores),
        warnings=[*busy, *different_bits(measurements)],
        tables=[_table(summaries)],
        notes=notes,
        footnotes=["In parentheses: the slowest and the fastest repeat."],
        data={"cores": cores, "warmup": warmup, "sizes": summaries, "runs": measurements, "sentences": notes},
        panels=[
            Panel("throughput", "Throughput, end to end", partial(_draw_throughput, summaries, measurements)),
            Panel("speedup", "Speedup", partial(_draw_speedup, summaries, measurements)),
            Panel("efficiency", "Efficiency per worker", partial(_draw_efficiency, summaries)),
            Panel("phases", "Where the time goes", partial(draw_phase_bars, _phase_costs(summaries, steps))),
        ],
        picture_note="Bars: means. Points: each repeat."
        + (" Light: more workers than cores." if beyond else ""),
    )


# --- numbers ------------------------------------------------------------------------------------------------


def measure(item: SizedRun, warmup: int) -> Measurement:
    run, kept = item.run, timing(item.run, skip=warmup)
    return Measurement(
        world_size=item.world_size,
        repeat=item.repeat,
        iterations=len(kept.seconds),
        steps_per_iteration=float(kept.steps.mean()),
        fps=kept.throughput,
        **{name: mean([run], warmup, name) for name in (*TIMES, "idle_share")},
        peak_rss_mb=peak_memory_mb([run]),
        policy_sha256=run.policy_sha256[-1] or "",
    )


def mean(runs: Sequence[Run], warmup: int, name: str) -> float:
    """Of one column, without values that were not measured (no CPU sample yet). An iteration lasts until the
    next one begins.
    """
    columns = [run.iteration_seconds() if name == "t_iter" else run.column(name) for run in runs]
    values = np.concatenate([column[warmup:] for column in columns])
    values = values[np.isfinite(values) & ((values > 0) | (name != "cpu_percent"))]
    return float(values.mean()) if values.size else float("nan")


def mean_iteration(
    runs: Sequence[SizedRun], size: int, *, warmup: int, cores: int, pieces: Pieces
) -> Iteration:
    of_size = [item.run for item in runs if item.world_size == size]
    return from_records(partial(mean, of_size, warmup), pieces, workers=size, cores=cores)


def summarize(measurements: Sequence[Measurement], cores: int) -> list[SizeSummary]:
    """Sizes in order."""
    sizes = sorted({item.world_size for item in measurements})
    of_size = {size: [item for item in measurements if item.world_size == size] for size in sizes}
    base = {item.repeat: item.fps for item in of_size[sizes[0]]}
    summaries = []
    for size, repeats in of_size.items():
        speeds = [item.fps for item in repeats]
        ratios = [item.fps / base[item.repeat] for item in repeats]
        speedup = float(np.mean(speeds) / np.mean(list(base.values())))
        summaries.append(
            SizeSummary(
                world_size=size,
                repeats=len(repeats),
                has_cores=size <= cores,
                fps=float(np.mean(speeds)),
                fps_low=min(speeds),
                fps_high=max(speeds),
                speedup=speedup,
                speedup_low=min(ratios),
                speedup_high=max(ratios),
                efficiency=speedup * sizes[0] / size,
                **{
                    name: float(np.mean([getattr(item, name) for item in repeats]))
                    for name in (*TIMES, "idle_share")
                },
                peak_rss_mb=max(item.peak_rss_mb for item in repeats),
            )
        )
    return summaries


def different_bits(measurements: Sequence[Measurement]) -> list[str]:
    hashes = {item.policy_sha256 for item in measurements if item.policy_sha256}
    if len(hashes) <= 1:
        return []
    return [
        f"{len(hashes)} different policy_sha256 in {len(measurements)} runs: parameters are NOT bit-identical"
    ]


def _phase_costs(summaries: Sequence[SizeSummary], steps: float) -> list[tuple[str, dict[str, float]]]:
    """Seconds per 1,000 steps. `t_learn` contains `t_sync`."""
    costs = []
    for row in summaries:
        seconds = {"rollout": row.t_rollout, "learn": row.t_learn - row.t_sync, "sync": row.t_sync}
        seconds["other"] = max(0.0, row.t_iter - row.t_rollout - row.t_learn)
        per_thousand = {name: 1000 * value / steps for name, value in seconds.items()}
        costs.append((count(row.world_size, "worker"), per_thousand))
    return costs


def _headline(summaries: Sequence[SizeSummary], run: Run) -> str:
    best = max((row for row in summaries if row.has_cores), key=lambda row: row.speedup, default=summaries[0])
    workers = count(best.world_size, "worker")
    return f"{short_env(run.env_id)}: {best.fps:,.0f} steps/s with {workers}, {best.speedup:.2f}x"


def _subtitle(run: Run, cores: int) -> str:
    parts = [
        f"network {run.word('training.policy')}",
        f"{run.word('env.num_envs')} environments x {run.word('training.n_steps')} steps",
        f"epochs {run.word('training.n_epochs')}, minibatch {run.word('training.batch_size')}",
        f"{run.cpu_model}, {count(cores, 'physical core')}",
    ]
    return " | ".join(parts)


def _table(summaries: Sequence[SizeSummary]) -> Table:
    rows = [
        Row.of(
            f"{size.world_size}{'' if size.has_cores else ' (> cores)'}",
            [
                f"{size.fps:,.0f} ({size.fps_low:,.0f} to {size.fps_high:,.0f})",
                f"{size.speedup:.2f}x",
                f"{size.efficiency:.0%}",
                f"{size.t_rollout / size.t_iter:.0%}",
                f"{size.t_learn / size.t_iter:.0%}",
                f"{size.t_coordinator / size.t_iter:.1%}",
            ],
        )
        for size in summaries
    ]
    header = ("workers", "steps/s", "speedup", "efficiency", "collect", "update", "coordinator")
    return Table("Measured", header, rows)


# --- files --------------------------------------------------------------------------------------------------


def write_report(report: Document, runs: Sequence[SizedRun], directory: Path) -> list[Path]:
    logs = make_directory(directory / "logs")
    for item in runs:
        log = logs / f"w{item.world_size}_r{item.repeat}.jsonl"
        write_atomically(log, (item.run.path / METRICS).read_bytes())
    per_run, sizes = (list(map(asdict, report.data[name])) for name in ("runs", "sizes"))
    texts = {
        "per_run.csv": to_csv(per_run),
        "per_run.json": to_json(per_run),
        "summary.csv": to_csv(sizes),
        "summary.json": to_json({**report.data, "sizes": sizes, "runs": per_run}),
        "report.txt": as_text(report),
    }
    for name, text in texts.items():
        write_atomically(directory / name, text.encode())
    note = f"{report.subtitle}\n{report.picture_note}"
    picture = theme.sheet(report.panels, title=report.headline, note=note)
    return [theme.save(picture, directory / "plots.png"), *[directory / name for name in texts]]


# --- pictures -----------------------------------------------------------------------------------------------


def _bars(axes: Axes, summaries: Sequence[SizeSummary], values: Sequence[float]) -> None:
    for place, (row, value) in enumerate(zip(summaries, values, strict=True)):
        color = theme.series_color(0)
        axes.bar(place, value, width=0.5, color=color, alpha=0.85 if row.has_cores else 0.35)
    axes.set_xticks(range(len(summaries)), [str(row.world_size) for row in summaries])
    axes.set(xlabel="workers", xlim=(-0.6, len(summaries) - 0.4))
    axes.grid(axis="x", visible=False)


def _points(axes: Axes, summaries: Sequence[SizeSummary], points: Sequence[tuple[int, float]]) -> None:
    sizes = [row.world_size for row in summaries]
    places = [sizes.index(size) for size, _ in points]
    axes.plot(places, [value for _, value in points], "o", color=theme.TEXT, markersize=4)
    theme.from_zero(axes)


def _draw_throughput(
    summaries: Sequence[SizeSummary], measurements: Sequence[Measurement], axes: Axes
) -> None:
    _bars(axes, summaries, [row.fps for row in summaries])
    _points(axes, summaries, [(item.world_size, item.fps) for item in measurements])
    axes.set_ylabel("steps per second")
    theme.plain_numbers(axes)


def _draw_speedup(summaries: Sequence[SizeSummary], measurements: Sequence[Measurement], axes: Axes) -> None:
    first = summaries[0].world_size
    base = {item.repeat: item.fps for item in measurements if item.world_size == first}
    _bars(axes, summaries, [row.speedup for row in summaries])
    for place, row in enumerate(summaries):
        ideal = row.world_size / first
        axes.plot([place - 0.3, place + 0.3], [ideal, ideal], ":", color=theme.MUTED, linewidth=1.5)
    _points(axes, summaries, [(item.world_size, item.fps / base[item.repeat]) for item in measurements])
    axes.set_ylabel(f"times {count(first, 'worker')} (dotted: ideal)")


def _draw_efficiency(summaries: Sequence[SizeSummary], axes: Axes) -> None:
    values = [100 * row.efficiency for row in summaries]
    _bars(axes, summaries, values)
    for place, value in enumerate(values):
        axes.annotate(f"{value:.0f}%", (place, value), xytext=(0, 4), textcoords="offset points", ha="center")
    axes.set(ylabel="% of ideal", ylim=(0, max(115.0, 1.12 * max(values))))
