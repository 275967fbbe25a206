"""Draw how algorithms learn at equal steps and at equal minutes: one row of panels for each game.

Runs lie in one folder as <game>-<label>. Their steps are their own; their minutes are those steps at the
speed of short runs of the same names (--speeds) that had the machine to themselves, so that the learning
itself may share it. What is drawn is written as JSON, from which --data draws it again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401  # isort: skip
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from parallel_ppo.arguments import Parser, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.reports import curves, statistics  # noqa: E402
from parallel_ppo.reports import theme as themes  # noqa: E402
from parallel_ppo.reports.groups import algorithm, short_env  # noqa: E402
from parallel_ppo.reports.runs import Run, load_run  # noqa: E402
from parallel_ppo.storage.files import write_atomically  # noqa: E402

EXAMPLE = "benchmarks/algorithms.py --runs runs/learning --speeds runs/alone --output algorithms"
MAX_POINTS = 80  # of a curve
Data = dict[str, Any]


def read(runs: Path, speeds: Path) -> Data:
    """Everything that is drawn."""
    found = []
    for directory in sorted(path for path in runs.iterdir() if (path / "summary.json").exists()):
        if not (speeds / directory.name).is_dir():
            raise InputError(f"--speeds {speeds}: has no {directory.name}, whose steps lie in {directory}")
        found.append(curve(load_run(directory), load_run(speeds / directory.name)))
    if not found:
        raise InputError(f"--runs {runs}: holds no finished run")
    return {"curves": found}


def curve(learned: Run, measured: Run) -> Data:
    returns = curves.return_curve(learned)
    known = np.flatnonzero(np.isfinite(returns))
    points = known[np.unique(np.linspace(0, len(known) - 1, MAX_POINTS).astype(int))]
    return {
        "game": short_env(learned.env_id),
        "algorithm": algorithm(learned),
        "policy": learned.setting("training.policy"),
        "num_levels": learned.setting("env.num_levels"),
        "seed": learned.seed,
        "num_workers": measured.num_workers,
        "cpu": measured.machine.get("cpu_model"),
        "commit": str(measured.info.get("git_commit"))[:10],
        "steps_per_second": round(statistics.throughput([curves.timing(measured)]).value, 1),
        "steps": learned.steps[points].astype(int).tolist(),
        "return": np.round(returns[points], 3).tolist(),
    }


def at_equal_effort(found: list[Data]) -> list[Data]:
    """Of one game: the return of each where the first ended, counted in steps and in seconds."""
    steps = min(one["steps"][-1] for one in found)
    seconds = min(one["steps"][-1] / one["steps_per_second"] for one in found)
    return [
        {
            "game": one["game"], "algorithm": one["algorithm"], "steps_per_second": one["steps_per_second"],
            "steps": steps, "return_at_steps": _until(one, steps), "minutes": round(seconds / 60, 2),
            "return_at_minutes": _until(one, seconds * one["steps_per_second"]),
        }
        for one in found
    ]  # fmt: skip


def _until(one: Data, steps: float) -> float:
    known = [value for at, value in zip(one["steps"], one["return"], strict=True) if at <= steps + 0.5]
    return known[-1] if known else float("nan")


def figure(data: Data) -> Figure:
    games = list(dict.fromkeys(one["game"] for one in data["curves"]))
    names = sorted({one["algorithm"] for one in data["curves"]})
    colors = {name: themes.color_of(themes.LIGHT, index) for index, name in enumerate(names)}
    with themes.drawing(themes.LIGHT):
        title = "Returns in training at equal steps and at equal minutes"
        legend = [(name, colors[name]) for name in names]
        _, body, result = themes.headed_figure(11, 3.4 * len(games), title=title, legend=legend)
        for row, game in zip(body.subplots(len(games), 2, squeeze=False), games, strict=True):
            found = [one for one in data["curves"] if one["game"] == game]
            _draw(row[0], found, colors, minutes=False)
            _draw(row[1], found, colors, minutes=True)
            row[0].set_title(f"{game}: over steps")
            row[1].set_title(f"{game}: over minutes, at the speed measured alone")
            row[0].set_ylabel(f"mean of the last {curves.RETURN_WINDOW} episodes")
    return result


def _draw(axes: Axes, found: list[Data], colors: dict[str, str], *, minutes: bool) -> None:
    for one in found:
        scale = 60 * one["steps_per_second"] if minutes else 1.0
        axes.plot(
            np.array(one["steps"]) / scale, one["return"], color=colors[one["algorithm"]], linewidth=1.8
        )
    axes.set_xlim(left=0)
    if minutes:
        axes.set_xlabel(f"minutes with {found[0]['num_workers']} workers")
    else:
        themes.steps_axis(axes)


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="finished runs, <game>-<label>")
    parser.add_argument("--speeds", type=Path, metavar="DIR", help="short runs of the same names, each alone")
    parser.add_argument("--data", type=Path, metavar="FILE", help="draw this JSON instead of reading runs")
    parser.add_argument("--output", type=Path, default=Path("algorithms"), metavar="NAME",
                        help="writes NAME.png, and NAME.json of runs (default: %(default)s)")  # fmt: skip
    arguments = parser.parse_args()
    data = _data(arguments)
    for game in dict.fromkeys(one["game"] for one in data["curves"]):
        for row in at_equal_effort([one for one in data["curves"] if one["game"] == game]):
            print(json.dumps(row))
    output = arguments.output
    if arguments.data is None:
        write_atomically(output.with_suffix(".json"), (json.dumps(data, indent=1) + "\n").encode())
    themes.save(figure(data), output.with_suffix(".png"))
    return 0


def _data(arguments: argparse.Namespace) -> Data:
    if arguments.data is not None:
        return json.loads(arguments.data.read_text())
    if arguments.runs is None or arguments.speeds is None:
        raise InputError("--runs and --speeds: both are needed, or --data")
    return read(arguments.runs, arguments.speeds)


if __name__ == "__main__":
    run(main)
