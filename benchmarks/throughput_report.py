"""From raw measurements to figures, table, picture and page."""

import json
import platform
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.works import Work
from parallel_ppo.machine.resources import Machine
from parallel_ppo.reports import theme
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.storage.run_directory import git_commit
from parallel_ppo.version import VERSION

NAMES = {
    "ours": "parallel_ppo, a worker per core",
    "ours-1-worker": "parallel_ppo, 1 worker",
    "ours-2-workers": "parallel_ppo, 2 workers",
    "ours-4-workers": "parallel_ppo, 4 workers",
    "sequential": "parallel_ppo, sequential, all threads",
    "sequential-1-thread": "parallel_ppo, sequential, 1 thread",
    "sb3": "Stable-Baselines3",
    "sb3_channels_last": "Stable-Baselines3, channels-last",
    "sample_factory": "Sample Factory",
    "sample_factory_serial": "Sample Factory, serial mode",
    "rllib": "RLlib",
}


def facts(machine: Machine, work: Work) -> dict[str, Any]:
    """What every report begins with. Nothing that names a host."""
    return {
        "work": work._asdict(),
        "description": work.description if work.epochs else f"collection only, {work.description}",
        "machine": {
            "cpu_model": machine.cpu_model,
            "cpus": len(machine.cores),
            "physical_cores": machine.num_physical_cores,
            "cpu_quota": machine.cpu_quota,
            "memory_gb": round(machine.memory_limit_bytes / 1e9, 1),
        },
        "versions": {"parallel_ppo": VERSION, "commit": git_commit(), "python": platform.python_version()},
    }


def write(directory: Path, results: dict[str, Any]) -> list[Path]:
    rows = collection_rows(results) if "games" in results else rows_of(results)
    results = results | {"rows": rows}
    Console().print(_table(rows))
    paths = [directory / f"throughput.{ending}" for ending in ("json", "md", "png")]
    write_atomically(paths[0], (json.dumps(results, indent=1) + "\n").encode())
    write_atomically(paths[1], markdown(results, rows).encode())
    _picture(paths[2], results)
    return paths


def spread(values: list[float], pattern: str) -> str:
    """The median, and the range it comes from."""
    middle = format(statistics.median(values), pattern)
    if len(values) == 1:
        return middle
    return f"{middle} ({format(min(values), pattern)}-{format(max(values), pattern)})"


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[float]:
    """Repeat by repeat: neighbours in time are compared, so that a slow minute hits both."""
    return [
        one["steps_per_second"] / other["steps_per_second"] for one, other in zip(ours, theirs, strict=False)
    ]


def rows_of(results: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    ours = results["contenders"]["ours"]["runs"]
    for name, contender in results["contenders"].items():
        runs = contender["runs"]
        shares = [
            run["steps_per_second"] * results["mega_flops_per_step"] / 1000 / rate
            for run, rate in zip(runs, results["sgemm_gflops"], strict=False)
        ]
        rows.append({
            "contender": name,
            "steps/s": spread([run["steps_per_second"] for run in runs], ".1f"),
            "ours is faster by": "-" if name == "ours" else spread(ratios(ours, runs), ".2f"),
            "of sgemm": spread(shares, ".1%"),
            "peak memory, MB": f"{max(run['peak_mb'] for run in runs):.0f}",
        })  # fmt: skip
    return rows


def collection_rows(results: dict[str, Any]) -> list[dict[str, str]]:
    rows = [
        {
            "game": game,
            "steps/s": spread([run["ours"] for run in runs], ".0f"),
            "bare steps/s": spread([run["bare"] for run in runs], ".0f"),
            "costs more by": spread([run["bare"] / run["ours"] - 1 for run in runs], "+.1%"),
        }
        for game, runs in results["games"].items()
    ]
    ratio = statistics.median(
        statistics.median(run["bare"] / run["ours"] - 1 for run in runs) for runs in results["games"].values()
    )
    return [*rows, {"game": "median", "steps/s": "", "bare steps/s": "", "costs more by": f"{ratio:+.1%}"}]


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    return table


def markdown(results: dict[str, Any], rows: list[dict[str, str]]) -> str:
    machine, versions = results["machine"], results["versions"]
    lines = [
        f"# Throughput, {results['work']['name']}",
        "",
        f"{results['description']}.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(row.values()) + " |" for row in rows),
        "",
        "Medians of the repeats, with their range in brackets; contenders interleaved in one run, their "
        "order rotated.",
    ]
    if "sgemm_gflops" in results:
        lines += [
            f"Ratios are taken repeat by repeat. {results['warmup']} iterations of warm-up in each run are "
            "left out.",
            f"sgemm on {results['num_cores']} cores, measured in the same run: "
            f"{spread(results['sgemm_gflops'], '.0f')} GFLOP/s; "
            f"a step is counted as {results['mega_flops_per_step']:.1f} MFLOP.",
            "Memory is the largest proportional set size of the whole process tree, sampled every second, "
            "or less often where that would cost 1% of the time. Peers do not normalise rewards; ours does. "
            "RLlib bounds the squared value error by 10 instead of clipping values at 0.2.",
        ]
    else:
        lines.append(
            f"Bare: {results['num_workers']} processes that do nothing but Procgen steps and inferences of "
            "the same batches."
        )
    quota = f", CPU quota {machine['cpu_quota']:g}" if machine["cpu_quota"] is not None else ""
    lines += [
        "",
        f"Machine: {machine['cpu_model']}, {machine['cpus']} CPUs ({machine['physical_cores']} physical "
        f"cores{quota}), {machine['memory_gb']:g} GB.",
        f"Versions: parallel_ppo {versions['parallel_ppo']} ({versions['commit'] or 'no commit'}), Python "
        f"{versions['python']}"
        + "".join(
            f"; {name}: "
            f"{', '.join(f'{package} {version}' for package, version in contender['versions'].items())}"
            for name, contender in results.get("contenders", {}).items()
        )
        + ".",
    ]
    lines += [f"Left out: {name}: {why}." for name, why in results.get("unavailable", {}).items()]
    return "\n".join(lines) + "\n"


def _picture(path: Path, results: dict[str, Any]) -> None:
    """Bars to the medians, with the range of the repeats; every bar says what it is and how much."""
    if "games" in results:
        bars = {game: [run["bare"] / run["ours"] for run in runs] for game, runs in results["games"].items()}
        label, title = "seconds of our collection / of bare steps and inferences (dashed: 1.1)", "16 games"
    else:
        contenders = results["contenders"].items()
        bars = {
            name: [run["steps_per_second"] for run in contender["runs"]] for name, contender in contenders
        }
        label, title = "steps per second, end to end", results["description"]
    with theme.drawing(theme.LIGHT):
        figure = theme.new_figure(10, 1.5 + 0.42 * len(bars))
        axes = figure.subplots()
        for place, (name, values) in enumerate(bars.items()):
            middle = statistics.median(values)
            color = theme.LIGHT.series[1] if name.startswith(("ours", "seq")) else theme.LIGHT.phases[3]
            reach = [[middle - min(values)], [max(values) - middle]]
            axes.barh(place, middle, xerr=reach, color=color, ecolor=theme.LIGHT.text, capsize=3, height=0.65)
            beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{middle:,.3g}", (max(values), place), **beside)
        axes.set_yticks(range(len(bars)), [NAMES.get(name, name) for name in bars])
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        figure.suptitle(f"{results['work']['name']}: {title}", x=0.01, ha="left", fontsize=10, weight="bold")
        if "games" in results:
            axes.axvline(1.1, color=theme.LIGHT.series[0], linestyle="--", linewidth=1)
        commit = (results["versions"]["commit"] or "no commit")[:7]
        figure.supxlabel(
            f"Medians and ranges, interleaved; {results['machine']['cpus']} cores; commit {commit}",
            x=0.01, ha="left", fontsize=8, color=theme.LIGHT.muted,
        )  # fmt: skip
    theme.save(figure, path)
