#!/usr/bin/env python
"""Long Procgen runs, one after the other at the lowest priority; see --help."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, run  # noqa: E402
from parallel_ppo.child import command  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.reports import trainer  # noqa: E402
from parallel_ppo.reports.curves import final_returns  # noqa: E402
from parallel_ppo.reports.runs import load_run  # noqa: E402
from parallel_ppo.storage.files import write_atomically  # noqa: E402

EVERY = 1_000_000  # steps between evaluations
EPISODES = 200
CONTROL = "control"  # a file: `pause`, or a number of workers
SAVED_AND_STOPPED = (75, 130)
LEVELS = ("--num-levels", "200")
# As Impoola's authors published: gamma, and the learning rate at width 1.
OF_IMPOOLA = ("--set", "training.gamma=0.99", "--learning-rate", "7e-4")


class Reference(NamedTuple):
    name: str
    rows: int  # evaluations, one after every million steps
    flags: Sequence[str]


BIGFISH, STARPILOT = ("--env", "bigfish", *LEVELS), ("--env", "starpilot", *LEVELS)
RUNS = (
    Reference("bigfish-ppo", 10, BIGFISH),
    Reference("starpilot-ppo", 10, STARPILOT),
    Reference("bigfish-plr", 10, (*BIGFISH, "--set", "env.level_sampler=plr")),
    Reference("starpilot-impala-0.99", 5, (*STARPILOT, *OF_IMPOOLA)),
    Reference("starpilot-impoola-0.99", 5, (*STARPILOT, "--policy", "impoola", *OF_IMPOOLA)),
    Reference("bigfish-drac", 5, (*BIGFISH, "--set", "training.augmentation=crop")),
    Reference("bigfish-ppo", 25, BIGFISH),
    Reference("starpilot-ppo", 25, STARPILOT),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        description="Continue the reference runs of Procgen, one after the other, at the lowest priority.\nAfter"
        " every million steps, a hash and an evaluation are written to docs/data/.\nWrite `pause` or a number of"
        " workers into the file `control` of the output directory at any time.",
        examples=("tools/reference.py --output-dir /data/reference", "echo pause > /data/reference/control"),
    )
    add = parser.add_argument
    add("--output-dir", type=Path, required=True, metavar="DIR", help="of the runs; outside the repository")
    add(
        "--data",
        type=Path,
        default=ROOT / "docs/data",
        metavar="DIR",
        help="of the JSON (default: docs/data)",
    )
    flags = parser.parse_args(argv)
    if flags.output_dir.resolve().is_relative_to(ROOT):
        raise InputError(f"--output-dir {flags.output_dir}: is in the repository; choose a place outside")
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    for reference in RUNS:
        follow(reference, flags.output_dir, flags.data)
    return 0


def follow(
    reference: Reference, place: Path, data: Path, every: int = EVERY, episodes: int = EPISODES
) -> None:
    """Continues a run to its end, or says why not."""
    directory, file = place / reference.name, data / f"reference_{reference.name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    print_progress(reference, rows)
    if rows and len(rows) < reference.rows and not (directory / "checkpoints/latest").exists():
        print(f"{reference.name}: {directory} is lost; going on with the next run", flush=True)
        return
    while len(rows) < reference.rows:
        steps = (len(rows) + 1) * every
        until_done(place, partial(training, reference, directory, steps))
        report = directory / "reference_evaluation.json"
        until_done(place, partial(evaluation, directory, report, episodes))
        rows.append(row_of(directory, json.loads(report.read_text())))
        text = json.dumps({"name": reference.name, "flags": [*reference.flags], "rows": rows}, indent=1)
        write_atomically(file, (text + "\n").encode())
        print_progress(reference, rows)


def training(reference: Reference, directory: Path, steps: int, workers: str) -> list[str]:
    budget = ["--total-timesteps", str(steps), "--num-workers", workers, "--quiet"]
    if (directory / "checkpoints/latest").exists():
        return ["train", "--resume", str(directory), *budget]
    return ["train", *reference.flags, "--output-dir", str(directory), *budget]


def evaluation(directory: Path, report: Path, episodes: int, workers: str) -> list[str]:
    how = ["--levels", "train,test", "--num-episodes", str(episodes), "--num-workers", workers]
    return ["evaluate", str(directory), *how, "--output", str(report), "--quiet"]


def until_done(place: Path, line: Callable[[str], list[str]]) -> None:
    """Runs a command with the workers that `control` asks for. A change stops it, and it continues as asked."""
    output = place / "output.log"
    while True:
        while (wanted := control(place)) == "pause":
            time.sleep(trainer.POLL_SECONDS)
        child = trainer.start(["nice", "-n", "19", *command(*line(wanted))], output)
        with trainer.interrupting([child]):
            while child.poll() is None and control(place) == wanted:
                time.sleep(trainer.POLL_SECONDS)
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            child.wait()
        if child.returncode not in SAVED_AND_STOPPED:
            trainer.check(child, place, output)
            return


def control(place: Path) -> str:
    """`pause`, or the workers: a number or `auto`."""
    try:
        text = (place / CONTROL).read_text().strip()
    except FileNotFoundError:
        return "auto"
    return text if text == "pause" or text.isdecimal() else "auto"


def row_of(directory: Path, report: dict[str, Any]) -> dict[str, Any]:
    run, levels = load_run(directory), report["levels"]
    return {
        "steps": int(run.steps[-1]),
        "policy_sha256": run.policy_sha256[-1],
        "return_last_100": float(final_returns(run).mean()) if len(final_returns(run)) else None,
        "train": levels["train"]["return"]["mean"],
        "test": levels["test"]["return"]["mean"],
        "test_with_seen_frames": report["first_frames"]["return_with_seen"],
        "episodes": report["num_episodes"],
        "git_commit": run.info.get("git_commit"),
        "cpu_model": run.cpu_model,
        "build": run.procgen_build,
        "workers": run.num_workers,
    }


def print_progress(reference: Reference, rows: Sequence[dict[str, Any]]) -> None:
    line = f"{reference.name}: {min(len(rows), reference.rows)} of {reference.rows} evaluations"
    if rows:
        last = rows[-1]
        line += (
            f", {last['steps']:,} steps, train {last['train']['value']:.2f}, test {last['test']['value']:.2f}"
        )
    print(line, flush=True)


if __name__ == "__main__":
    run(main)
