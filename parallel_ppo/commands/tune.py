"""Find the number of workers and the pinning that train fastest on this machine, in a minute or two.

Each candidate trains for a few seconds with smaller iterations of the same proportions. None of them changes
the learned parameters.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.arguments import Parser, as_typed, number_list, positive, writable_file
from parallel_ppo.child import command
from parallel_ppo.commands.training_flags import config_file, flag_values, shipped_config
from parallel_ppo.envs.families import probe
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import MAX_PROCESSES, Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.training.planning import resolve_policy

TRIAL_SECONDS = 3.0  # of training, after the start
WORTHWHILE = 1.02  # a smaller gain is noise: the default stays
EXAMPLES = (
    "-m parallel_ppo tune --env starpilot --policy impala --output tuned.yaml",
    "train_parallel_timed.py --config tuned.yaml",
)


class Candidate(NamedTuple):
    num_workers: int | str
    pinning: str

    def __str__(self) -> str:
        return f"{self.num_workers} workers, pinning {self.pinning}"


DEFAULT = Candidate("auto", "auto")
Rates = dict[Candidate, list[float]]  # steps per second of every trial; none where it could not run


def main(argv: Sequence[str] | None = None) -> int:
    return tune(build_parser().parse_args(argv))


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    add = parser.add_argument
    add("--config", type=config_file, metavar="FILE", help="YAML settings (default: the shipped ones)")
    add("--env", dest="env.id", default=argparse.SUPPRESS, metavar="ENV", help="the environment")
    add("--policy", dest="training.policy", default=argparse.SUPPRESS, metavar="POLICY", help="the network")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    add("--num-workers", metavar="N,..", help="numbers to try (default: around the number of cores)")
    add("--rounds", type=positive, default=2, metavar="N", help="trials of each (default: %(default)s)")
    add("--seconds", type=float, default=90.0, help="start no trial after this time (default: %(default)s)")
    add("--output", type=Path, default=Path("tuned.yaml"), metavar="FILE",
        help="the YAML to write (default: %(default)s)")  # fmt: skip
    return parser


def tune(arguments: argparse.Namespace) -> int:
    if arguments.output.exists():
        raise InputError(f"--output {arguments.output}: exists already; give another name")
    writable_file("--output", arguments.output, (".yaml", ".yml"))
    flags = flag_values(arguments)
    file = arguments.config or shipped_config(flags.get("env.id"), "parallel")
    settings = load_settings(file=file, flags=flags)
    settings = resolve_policy(settings, probe(settings))
    numbers = None
    if arguments.num_workers is not None:
        numbers = number_list(arguments.num_workers, flag="--num-workers")
        if not all(1 <= number <= MAX_PROCESSES for number in numbers):
            raise InputError(
                f"--num-workers {arguments.num_workers}: expected numbers from 1 to {MAX_PROCESSES}"
            )
    found: Rates = {candidate: [] for candidate in candidates(settings, numbers)}
    end, problem = time.monotonic() + arguments.seconds, ""
    for round_number, candidate in itertools.product(range(arguments.rounds), found):
        if (round_number or candidate != DEFAULT) and time.monotonic() > end:
            break
        try:
            rate = trial(settings, candidate)
        except InputError as error:
            problem = str(error)
            print(f"{candidate!s:<32} {problem}", flush=True)
            continue
        found[candidate].append(rate)
        print(f"{candidate!s:<32} {rate:12,.1f} steps/s", flush=True)
    best = choose(found)
    if best is None:
        raise InputError(f"no trial could be run: {problem}")
    rate = statistics.median(found[best])
    write_atomically(arguments.output, tuned_yaml(settings, best, rate).encode())
    print(f"fastest: {best}, {rate:,.1f} steps/s" + (" (the default)" if best == DEFAULT else ""))
    print(f"wrote {arguments.output}")
    print(f"next: {as_typed(f'train_parallel_timed.py --config {arguments.output}')}")
    return 0


def candidates(settings: Settings, numbers: list[int] | None = None) -> list[Candidate]:
    """The default first; no more workers than there are pieces of work."""
    if numbers is None:
        cores = plan_placement(read_machine(), num_workers=None, pinning="none").num_workers
        most = max(settings.sizes.num_slices, settings.sizes.num_microbatches)
        around = {1, cores // 2, cores - 1, cores, 2 * cores}
        numbers = sorted(number for number in around if 1 <= number <= most)
    found = [Candidate(number, pinning) for number in numbers for pinning in ("auto", "none")]
    return [DEFAULT, *found]


def choose(found: Rates) -> Candidate | None:
    """The fastest, but the default unless the gain is clear; None where no trial could run."""
    rates = {candidate: statistics.median(trials) for candidate, trials in found.items() if trials}
    best = max(rates, key=lambda candidate: rates[candidate], default=None)
    if best is not None and DEFAULT in rates and rates[best] < WORTHWHILE * rates[DEFAULT]:
        return DEFAULT
    return best


def applied(settings: Settings, candidate: Candidate) -> Settings:
    settings = settings.changed("parallel", num_workers=candidate.num_workers, num_envs_per_worker=None)
    return settings.changed("hardware", pinning=candidate.pinning, num_threads=1)


def shortened(settings: Settings) -> Settings:
    """One minibatch an epoch and as many epochs: collecting and learning keep their proportion."""
    training, envs = settings.training, settings.env.num_envs
    steps = next(n for n in range(1, training.n_steps + 1) if envs * n % training.batch_size == 0)
    settings = settings.changed(
        "training", n_steps=steps, total_timesteps=None, duration=TRIAL_SECONDS / 3600,
        target_kl=None, learning_rate_schedule="constant", clip_range_schedule="constant",
    )  # fmt: skip
    return settings.changed("logging", tensorboard=False)


def trial(settings: Settings, candidate: Candidate) -> float:
    """Steps per second, without the first iteration."""
    with tempfile.TemporaryDirectory(prefix="tune-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(to_yaml(shortened(applied(settings, candidate))))
        line = command("train", "--quiet", "--config", str(config), "--output-dir", f"{directory}/run")
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            raise InputError(lines[-1] if lines else f"exit code {result.returncode}")
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return statistics.median(record["fps"] for record in records[1:] or records)


def tuned_yaml(settings: Settings, best: Candidate, rate: float) -> str:
    return (
        f"# Found by parallel-ppo tune: {best}; {rate:,.1f} steps/s.\n"
        "# It learns the same parameters as the default.\n" + to_yaml(applied(settings, best))
    )
