"""Tell from a trace (`--trace`) how long each phase took and what share of it the workers had nothing to do.

With a lag the workers collect the next rollout while the coordinator reduces, exchanges and steps: this is
the figure that shows it. Iterations that warm up are left out. --picture draws one iteration of each.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401  # isort: skip
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from parallel_ppo.arguments import Parser, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.records.trace import read_events  # noqa: E402
from parallel_ppo.reports import theme  # noqa: E402

EXAMPLE = "tools/trace_idle.py runs/parallel-1/trace-1.json"
COORDINATOR = 0  # the track; workers have the others
# What has a colour, and the events that are drawn in it; the rest is white: waiting.
SHOWN = {
    "collect": ("collect",),
    "gradients": ("gradient", "gradients"),
    "exchange between nodes": ("gather", "exchange"),
    "sums and values": ("reduce", "sum", "optimizer", "copy", "revalue"),
}
Interval = tuple[float, float]


class PhaseIdle(NamedTuple):
    seconds: float  # of the phase, per iteration
    idle: float  # share of all workers' time in it


def idle_by_phase(path: Path, *, skip: int = 1) -> dict[str, PhaseIdle]:
    """`skip` iterations are left out at the start; an iteration begins with its phase `collect`."""
    events = read_events(path)
    workers = sorted({e["tid"] for e in events if e["ph"] == "M"} - {COORDINATOR})
    phases = [e for e in events if e["ph"] == "X" and e["tid"] == COORDINATOR]
    starts = [e["ts"] for e in phases if e["name"] == "collect"]
    if not workers or len(starts) <= skip + 1:
        raise InputError(f"{path}: holds too few iterations; trace at least {skip + 2}")
    first, last = starts[skip], starts[-1]  # what was still under way at the end is not written
    busy = {worker: _union(_tasks(events, worker)) for worker in workers}
    spent, idle = defaultdict(float), defaultdict(float)
    for phase in phases:
        began, ended = phase["ts"], phase["ts"] + phase["dur"]
        if first <= began < last:
            spent[phase["name"]] += ended - began
            for spans in busy.values():
                idle[phase["name"]] += (ended - began) - _covered(spans, began, ended)
    iterations = len(starts) - 1 - skip
    return {
        name: PhaseIdle(total / 1e6 / iterations, idle[name] / (total * len(workers)))
        for name, total in spent.items()
        if total
    }


def _tasks(events: Iterable[dict[str, Any]], worker: int) -> list[Interval]:
    """Nothing more urgent is asked of a worker than what interrupts its collect, so all of it counts."""
    return sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == worker and e.get("cat") == "task"
    )


def _union(spans: Sequence[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for began, ended in spans:
        if result and began <= result[-1][1]:
            result[-1] = result[-1][0], max(ended, result[-1][1])
        else:
            result.append((began, ended))
    return result


def _covered(spans: Sequence[Interval], began: float, ended: float) -> float:
    return sum(max(0.0, min(ended, until) - max(began, since)) for since, until in spans)


# --- as a picture -------------------------------------------------------------------------------------------


def picture(paths: Sequence[Path], skip: int) -> Figure:
    """One iteration of each trace, on one scale of time: who did what."""
    with theme.drawing():
        colors = dict(zip(SHOWN, (gray for _, gray in theme.PHASES.values()), strict=True))
        legend = list(colors.items())
        title = "One iteration: what the coordinator waits for, and what the worker does meanwhile"
        body, figure = theme.headed_figure(11, 1.5 * len(paths) + 0.5, title=title, legend=legend)
        rows = body.subplots(len(paths), 1, squeeze=False, sharex=True).ravel()
        for axes, path in zip(rows, paths, strict=True):
            _draw_iteration(axes, read_events(path), skip, colors)
            axes.set_title(path.parent.name)
        rows[-1].set_xlabel("seconds")
    return figure


def _draw_iteration(axes: Axes, events: list[dict[str, Any]], skip: int, colors: dict[str, str]) -> None:
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    drawn = [e for e in events if e["ph"] == "X" and e.get("cat") != "phase" and e["name"] != "wait"]
    starts = [e["ts"] for e in drawn if e["tid"] == COORDINATOR and e["name"] == "collect"]
    first, last = starts[skip], starts[skip + 1]
    for event in sorted(drawn, key=lambda e: -e["dur"]):  # what interrupts a collect lies on top of it
        color = next((colors[shown] for shown, names in SHOWN.items() if event["name"] in names), None)
        began, ended = max(first, event["ts"]), min(last, event["ts"] + event["dur"])
        if color and ended > began:
            axes.barh(-event["tid"], (ended - began) / 1e6, left=(began - first) / 1e6, color=color)
    axes.set_yticks([-track for track in tracks], list(tracks.values()))
    axes.grid(False)


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    parser.add_argument("traces", type=Path, metavar="TRACE", nargs="+")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw them, as PNG or SVG")
    parser.add_argument("--skip", type=int, default=1, help="iterations that warm up (default: %(default)s)")
    arguments = parser.parse_args()
    for path in arguments.traces:
        print(path)
        for name, found in idle_by_phase(path, skip=arguments.skip).items():
            print(f"{name:12} {found.seconds:9.4f} s per iteration, workers idle {100 * found.idle:5.1f} %")
    if arguments.picture is not None:
        theme.save(picture(arguments.traces, arguments.skip), arguments.picture)
    return 0


if __name__ == "__main__":
    run(main)
