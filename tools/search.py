#!/usr/bin/env python
"""A random search of training settings for one environment; see --help."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: E402, F401

# isort: split
import numpy as np  # noqa: E402

from parallel_ppo.arguments import Parser, hours, number_list, run, whole_number  # noqa: E402
from parallel_ppo.child import command  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.keyed import generator  # noqa: E402
from parallel_ppo.reports import trainer  # noqa: E402
from parallel_ppo.reports.curves import final_returns  # noqa: E402
from parallel_ppo.reports.runs import load_run  # noqa: E402
from parallel_ppo.storage.files import write_atomically  # noqa: E402

RATES = (1e-4, 1e-3)  # drawn log-uniformly
CHOICES: dict[str, Sequence[Any]] = {
    "batch_size": (64, 128, 256, 512),
    "n_epochs": (5, 10, 20),
    "gamma": (0.98, 0.99, 0.995, 0.999, 0.9999),
    "gae_lambda": (0.8, 0.9, 0.92, 0.95, 0.98),
    "clip_range": (0.1, 0.2, 0.3),
    "entropy_coef": (0.0, 5e-4, 2e-3),
    "max_grad_norm": (0.5, 1.0, 2.0),
    "activation": ("tanh", "relu"),
    "initialization": ("orthogonal", "fan_in"),
    "initial_log_std": (0.0, -1.0, -2.0),
    "hidden_sizes": ("[64, 64]", "[256, 256]"),
}


def drawn(trial: int) -> dict[str, Any]:
    """The settings of a trial; the first are the shipped ones."""
    if trial == 0:
        return {}
    draws = generator(0, "search", trial)
    low, high = map(math.log, RATES)
    rate = float(f"{math.exp(draws.uniform(low, high)):.2g}")
    return {"learning_rate": rate} | {
        name: values[int(draws.integers(len(values)))] for name, values in CHOICES.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        description="Train with random settings until the time is up, and log each trial as JSON. The first trial has"
        " the shipped settings.\nA search continues where its log ends. Check the best on other seeds.",
        examples=("tools/search.py --env Ant-v5 --duration 1h --output-dir runs/search-ant",),
    )
    add = parser.add_argument
    add("--env", required=True, metavar="NAME", help="environment")
    add("--duration", type=hours, required=True, metavar="TIME", help="of all trials together")
    add(
        "--total-timesteps",
        type=whole_number,
        default=1_000_000,
        metavar="N",
        help="of each run (default: 1e6)",
    )
    add("--seeds", default="101,102", help="seeds of each trial, by commas (default: 101,102)")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="of the runs and of search.json")
    flags = parser.parse_args(argv)
    seeds, file = number_list(flags.seeds, flag="--seeds"), flags.output_dir / "search.json"
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    what = {"env": flags.env, "steps": flags.total_timesteps, "seeds": seeds}
    ranges = {"learning_rate": RATES, **CHOICES}
    log = json.loads(file.read_text()) if file.exists() else what | {"ranges": ranges, "trials": []}
    if any(log[key] != value for key, value in what.items()):
        raise InputError(
            f"--output-dir {flags.output_dir}: has a search of {log['env']} with other steps or seeds"
        )
    while sum(trial["seconds"] for trial in log["trials"]) < 3600 * flags.duration:
        number = len(log["trials"])
        trial = tried(drawn(number), number, flags.env, flags.total_timesteps, seeds, flags.output_dir)
        log["trials"].append(trial)
        write_atomically(file, (json.dumps(log, indent=1) + "\n").encode())
        best = max(log["trials"], key=lambda one: one["mean"] if one["mean"] is not None else -math.inf)
        print(f"trial {number}: {trial['mean']}; best so far {best['mean']}: {best['settings']}", flush=True)
    return 0


def tried(
    settings: dict[str, Any], number: int, env: str, steps: int, seeds: Sequence[int], place: Path
) -> dict[str, Any]:
    """Returns are means of the last 100 training episodes. A trial that fails has none."""
    began, returns, found = time.monotonic(), list[float](), {}
    chosen = [word for name, value in settings.items() for word in ("--set", f"training.{name}={value}")]
    for seed in seeds:
        directory = place / f"trial{number}-seed{seed}"
        own = ["--env", env, "--seed", str(seed), "--total-timesteps", str(steps), *chosen, "--quiet"]
        if (directory / "checkpoints/latest").exists():
            own = ["--resume", str(directory), "--total-timesteps", str(steps), "--quiet"]
        else:
            own += ["--output-dir", str(directory)]
        try:
            trainer.train(command("train", *own), run_directory=directory, output=place / "output.log")
        except trainer.TrainerFailed as error:
            if error.exit_code in (75, 130):
                raise
            print(f"trial {number}: {error}", file=sys.stderr)
            break
        one = load_run(directory)
        returns.append(float(np.mean(final_returns(one))))
        found = {"git_commit": one.info.get("git_commit"), "cpu_model": one.cpu_model}
    mean = float(np.mean(returns)) if len(returns) == len(seeds) else None
    return {
        "settings": settings,
        "returns": returns,
        "mean": mean,
        "seconds": round(time.monotonic() - began, 1),
        **found,
    }


if __name__ == "__main__":
    run(main)
