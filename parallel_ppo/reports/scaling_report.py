"""What a scaling benchmark leaves: tables, a picture and a few sentences, from its run directories."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Pieces
from parallel_ppo.printable import count
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.command_line import make_directory, shown
from parallel_ppo.reports.comparison import busy_machine
from parallel_ppo.reports.groups import Group, short_env
from parallel_ppo.reports.runs import METRICS, Run
from parallel_ppo.reports.scaling import (
    Extrapolation,
    Measurement,
    SizedRun,
    SizeSummary,
    extrapolate,
    iterations,
    measure,
    sentences,
    simulated,
    summarise,
)
from parallel_ppo.reports.scaling_costs import measured_costs
from parallel_ppo.reports.scaling_plot import scaling_figure
from parallel_ppo.reports.words import json_ready
from parallel_ppo.storage.files import write_atomically


@dataclass(frozen=True)
class ScalingReport:
    measurements: list[Measurement]
    summaries: list[SizeSummary]
    extrapolation: list[Extrapolation]
    sentences: list[str]
    title: str
    subtitle: str


def build_report(runs: Sequence[SizedRun], *, warmup: int, cores: int, pieces: Pieces) -> ScalingReport:
    for item in runs:
        if len(item.run) <= warmup:
            raise InputError(
                f"{item.run.path} has {count(len(item.run), 'iteration')}, all of them warm-up; raise "
                "--total-iters"
            )
    measurements = [measure(item, warmup) for item in runs]
    modelled = iterations(runs, warmup=warmup, cores=cores, pieces=pieces)
    summaries = summarise(runs, measurements, modelled, warmup=warmup, cores=cores)
    smallest, steps = modelled[min(modelled)], measurements[0].steps_per_iteration
    extrapolation = extrapolate(smallest, steps)
    full = max((size for size in modelled if size <= cores), default=1)
    costs = measured_costs(smallest, _traces(runs, 1), _traces(runs, full), warmup)
    told = simulated(*costs, summaries, pieces, steps=steps, cores=cores) if costs else []
    busy = busy_machine(Group("", tuple(item.run for item in runs)))
    return ScalingReport(
        measurements=measurements,
        summaries=summaries,
        extrapolation=extrapolation,
        sentences=[*sentences(summaries, measurements, modelled, extrapolation), *told, *busy],
        title=_title(summaries, runs[0].run),
        subtitle=_subtitle(runs[0].run, cores) + ("   |   THE MACHINE WAS BUSY" if busy else ""),
    )


def _traces(runs: Sequence[SizedRun], world_size: int) -> list[Path]:
    of_size = [item.run.path for item in runs if item.world_size == world_size]
    return [path for folder in of_size for path in folder.glob("trace-*.json")]


def _title(summaries: Sequence[SizeSummary], run: Run) -> str:
    best = max(
        (summary for summary in summaries if summary.has_cores),
        key=lambda item: item.speedup,
        default=summaries[0],
    )
    return (
        f"{short_env(run.env_id)}: {best.fps:,.0f} steps/s with {count(best.world_size, 'worker')}, "
        f"{best.speedup:.2f}x"
    )


def _subtitle(run: Run, cores: int) -> str:
    setting = run.setting
    return "   |   ".join(
        [
            f"network {setting('training.policy', 'unknown')}",
            f"{setting('env.num_envs')} environments x {setting('training.n_steps')} steps",
            f"{count(setting('training.n_epochs', 0), 'epoch')}, minibatch {setting('training.batch_size')}",
            f"{run.machine.get('cpu_model', 'unknown CPU')}, {count(cores, 'physical core')}",
        ]
    )


def write_report(report: ScalingReport, runs: Sequence[SizedRun], directory: Path) -> list[Path]:
    logs = make_directory(directory / "logs")
    for item in runs:
        log = logs / f"w{item.world_size}_r{item.repeat}.jsonl"
        write_atomically(log, (item.run.path / METRICS).read_bytes())
    _write_table(directory / "per_run", report.measurements)
    beyond = {"extrapolation": [asdict(row) for row in report.extrapolation], "sentences": report.sentences}
    _write_table(directory / "summary", report.summaries, extra=beyond)
    figure = scaling_figure(
        report.summaries, report.extrapolation, title=report.title, subtitle=report.subtitle
    )
    themes.save(figure, directory / "plots.png")
    text = "\n".join([report.title, report.subtitle, "", *report.sentences]) + "\n"
    write_atomically(directory / "report.txt", text.encode())
    names = ("per_run.csv", "per_run.json", "summary.csv", "summary.json", "plots.png", "report.txt")
    return [directory / name for name in names]


def _write_table(
    stem: Path, rows: Sequence[Measurement] | Sequence[SizeSummary], *, extra: dict[str, Any] | None = None
) -> None:
    records = [asdict(row) for row in rows]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, [field.name for field in fields(rows[0])])
    writer.writeheader()
    writer.writerows(records)
    write_atomically(stem.with_suffix(".csv"), table.getvalue().encode())
    content: Any = {"sizes": records, **extra} if extra is not None else records
    text = json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n"
    write_atomically(stem.with_suffix(".json"), text.encode())


def print_report(console: Console, report: ScalingReport) -> None:
    table = Table(
        title=shown(report.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("workers", "steps/s", "predicted", "speedup", "eff.", "collect", "update", "coord."):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.summaries:
        table.add_row(
            f"{row.world_size}{'' if row.has_cores else '*'}",
            f"{row.fps:,.0f} ({row.fps_low:,.0f}-{row.fps_high:,.0f})",
            f"{row.predicted_fps:,.0f}",
            f"{row.speedup:.2f}x",
            f"{row.efficiency:.0%}",
            f"{row.t_rollout / row.t_iter:.0%}",
            f"{row.t_learn / row.t_iter:.0%}",
            f"{row.t_coordinator / row.t_iter:.1%}",
        )
    console.print(table)
    console.print(shown(report.subtitle), style="dim", soft_wrap=True)
    for sentence in report.sentences:
        console.print(f"- {shown(sentence)}", soft_wrap=True)
