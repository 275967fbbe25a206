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
from parallel_ppo.storage.run_directory import git_commit
from parallel_ppo.version import VERSION


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
    paths[0].write_text(json.dumps(results, indent=1) + "\n")
    paths[1].write_text(markdown(results, rows))
    _picture(paths[2], results, rows)
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


def _picture(path: Path, results: dict[str, Any], rows: list[dict[str, str]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if "games" in results:
        names = list(results["games"])
        values = [[run["bare"] / run["ours"] for run in runs] for runs in results["games"].values()]
        label, reference = "time of our collection / bare steps and inferences", 1.1
    else:
        names = list(results["contenders"])
        values = [
            [run["steps_per_second"] for run in contender["runs"]]
            for contender in results["contenders"].values()
        ]
        label, reference = "steps per second, end to end", None
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.4 * len(names)), layout="constrained")
    colors = ["#1b6ca8" if name.startswith("ours") else "#9aa5b1" for name in names]
    middles = [statistics.median(value) for value in values]
    errors = [
        [middle - min(value) for middle, value in zip(middles, values, strict=True)],
        [max(value) - middle for middle, value in zip(middles, values, strict=True)],
    ]
    axes.barh(names, middles, xerr=errors, color=colors, ecolor="#333333", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(
        results["work"]["name"] + (": 16 games" if "games" in results else f": {results['description']}"),
        fontsize=8,
    )
    if reference is not None:
        axes.axvline(reference, color="#c0392b", linestyle="--", linewidth=1)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
