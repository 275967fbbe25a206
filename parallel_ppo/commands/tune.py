"""Find the workers and the pinning that train your game and network fastest here, in about a minute.

Nothing that is tried changes what is learned.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from parallel_ppo.arguments import Parser, as_typed
from parallel_ppo.child import command
from parallel_ppo.commands.training_flags import config_file, flag_values, shipped_config
from parallel_ppo.envs.build import probe
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.training.planning import resolve_policy
from parallel_ppo.training.worker_count import pieces_of

TRIAL_SECONDS = 3.0  # of training, after the start
WORTHWHILE = 1.02  # a smaller gain is noise: the default stays
HOPELESS = 0.8  # numbers of workers that the model expects to be slower than this are not tried
CONFIRMATIONS = 2  # more trials of the winner and of the default, in turns
EXAMPLES = (
    "tools/autotune.py --env starpilot --policy impala --output tuned.yaml",
    "train_parallel_timed.py --config tuned.yaml",
)


class Candidate(NamedTuple):
    num_workers: Any = "auto"
    pinning: str = "auto"


class Trial(NamedTuple):
    candidate: Candidate
    steps_per_second: float | None
    iteration: Iteration | None = None
    problem: str = ""


Measure = Callable[[Candidate], Trial]


def main(argv: Sequence[str] | None = None) -> int:
    return tune(build_parser().parse_args(argv))


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=EXAMPLES, quiet=False)
    add = parser.add_argument
    add("--config", type=config_file, metavar="FILE", help="YAML settings (default: the shipped ones)")
    add("--env", dest="env.id", default=argparse.SUPPRESS, metavar="ENV", help="the game")
    add(
        "--policy",
        dest="training.policy",
        default=argparse.SUPPRESS,
        metavar="POLICY",
        help="impala, impoola, nature, small_image, mlp or auto",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    add(
        "--output",
        type=Path,
        default=Path("tuned.yaml"),
        metavar="FILE",
        help="the YAML to write (default: %(default)s)",
    )
    add("--seconds", type=float, default=60.0, help="start no trial after this time (default: %(default)s)")
    return parser


def tune(arguments: argparse.Namespace) -> int:
    if arguments.output.exists():
        raise InputError(f"--output {arguments.output}: exists already; give another name")
    flags = flag_values(arguments)
    file = arguments.config or shipped_config(flags.get("env.id"), "parallel")
    settings = load_settings(file=file, flags=flags)
    settings = resolve_policy(settings, probe(settings))
    machine, console, began = read_machine(), Console(), time.monotonic()

    def measure(candidate: Candidate) -> Trial:
        trial = run_trial(settings, candidate, machine)
        rate = f"{trial.steps_per_second:,.1f} steps/s" if trial.steps_per_second else trial.problem
        console.print(f"[dim]{time.monotonic() - began:4.0f} s[/]  ", end="")
        console.print(f"{describe(candidate)}  {rate}", markup=False)
        return trial

    def is_over() -> bool:
        return time.monotonic() - began > arguments.seconds

    trials = confirm(search(machine, measure, is_over), measure, is_over)
    best = choose(trials)
    show(console, trials, best)
    write_atomically(arguments.output, tuned_yaml(settings, best).encode())
    train = as_typed(f"train_parallel_timed.py --config {arguments.output}")
    console.print(
        f"wrote {arguments.output}; train with: {train}",
        soft_wrap=True,
        markup=False,
    )
    return 0


# --- what is tried ------------------------------------------------------------------------------------------


def search(machine: Machine, measure: Measure, is_over: Callable[[], bool]) -> list[Trial]:
    """The default whatever the time; numbers of workers, the likeliest first; the best without pinning."""
    trials = [measure(Candidate())]
    for number in numbers_to_try(trials[0].iteration, machine):
        if is_over():
            return trials
        trials.append(measure(Candidate(number)))
    if not is_over() and any(trial.steps_per_second for trial in trials):
        trials.append(measure(choose(trials).candidate._replace(pinning="none")))
    return trials


def numbers_to_try(default: Iteration | None, machine: Machine) -> list[int]:
    """Around the cores, without what the model of the default's iteration rules out."""
    cores = plan_placement(machine, num_workers=None, pinning="none").num_workers
    numbers = {1, cores // 2, cores - 1, cores, len(machine.cores), 2 * cores if cores <= 4 else cores} - {0}
    if default is None:
        return sorted(numbers)
    pieces = default.pieces
    useful = [n for n in numbers - {default.workers} if n <= max(pieces.slices, pieces.lanes)]
    return sorted((n for n in useful if default.gain(n) > HOPELESS), key=default.seconds)


def confirm(trials: list[Trial], measure: Measure, is_over: Callable[[], bool]) -> list[Trial]:
    """The default and the winner again in turns, while there is time: a single trial may be luck."""
    rivals = [trials[0], choose(trials)]
    if rivals[0] is rivals[1] or not rivals[0].steps_per_second:
        return trials
    rates: list[list[float]] = [[rival.steps_per_second or 0.0] for rival in rivals]
    for _ in range(CONFIRMATIONS):
        for rival, found in zip(rivals, rates, strict=True):
            if is_over():
                break
            found.append(measure(rival.candidate).steps_per_second or 0.0)
    settled = {id(rival): statistics.median(found) for rival, found in zip(rivals, rates, strict=True)}
    return [
        trial._replace(steps_per_second=settled.get(id(trial), trial.steps_per_second)) for trial in trials
    ]


def choose(trials: list[Trial]) -> Trial:
    """The fastest; but the first, which is the default, unless the gain is clear."""
    measured = [trial for trial in trials if trial.steps_per_second]
    if not measured:
        raise InputError(f"no trial could be run: {trials[0].problem}")
    best = max(measured, key=lambda trial: trial.steps_per_second or 0.0)
    first = trials[0].steps_per_second
    return trials[0] if first and (best.steps_per_second or 0.0) < WORTHWHILE * first else best


# --- one trial ----------------------------------------------------------------------------------------------


def applied(settings: Settings, candidate: Candidate) -> Settings:
    settings = settings.changed("parallel", num_workers=candidate.num_workers, num_envs_per_worker=None)
    return settings.changed("hardware", pinning=candidate.pinning, num_threads=1)


def shortened(settings: Settings) -> Settings:
    """The same batches, but as few as an iteration can have: what a full one takes follows from it."""
    training, envs = settings.training, settings.env.num_envs
    steps = next(n for n in range(1, training.n_steps + 1) if envs * n % training.batch_size == 0)
    settings = settings.changed(
        "training", n_steps=steps, n_epochs=1, total_timesteps=None, duration=TRIAL_SECONDS / 3600,
        target_kl=None, learning_rate_schedule="constant", clip_range_schedule="constant",
    )  # fmt: skip
    return settings.changed("logging", tensorboard=False)


def full_iteration(
    records: list[dict[str, Any]], short: Settings, full: Settings, machine: Machine
) -> Iteration:
    """What a full iteration takes, from the phases of short ones."""

    def middle(name: str) -> float:
        return statistics.median(record[name] for record in records)

    pieces = pieces_of(full)
    updates = pieces.updates / pieces_of(short).updates
    learn = middle("t_iter") * (middle("share_gradients") + middle("share_reduce")) * updates
    around = middle("t_iter") - middle("t_rollout") - middle("t_learn")
    return Iteration(
        collect=middle("t_rollout") * full.shape.num_steps / short.shape.num_steps,
        learn=learn,
        coordinator=middle("t_learn") * updates - learn + around,
        pieces=pieces,
        workers=records[0]["num_workers"],
        cores=len(machine.cores),
    )


def run_trial(settings: Settings, candidate: Candidate, machine: Machine) -> Trial:
    full = applied(settings, candidate)
    short = shortened(full)
    with tempfile.TemporaryDirectory(prefix="autotune-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(to_yaml(short))
        line = command("train", "--quiet", "--config", str(config), "--output-dir", f"{directory}/run")
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            return Trial(candidate, None, problem=lines[-1] if lines else f"exit code {result.returncode}")
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    iteration = full_iteration(records[1:] or records, short, full, machine)
    return Trial(candidate, full.shape.steps_per_iteration / iteration.total, iteration)


# --- what is shown and written ------------------------------------------------------------------------------


def describe(candidate: Candidate) -> str:
    return f"workers {candidate.num_workers}, pinning {candidate.pinning}"


def show(console: Console, trials: list[Trial], best: Trial) -> None:
    table = Table("workers", "pinning", "steps/s", "")
    for trial in trials:
        rate = f"{trial.steps_per_second:,.1f}" if trial.steps_per_second else trial.problem
        note = "best" if trial is best else "default" if trial is trials[0] else ""
        table.add_row(*map(str, trial.candidate), rate, note)
    console.print(table)


def tuned_yaml(settings: Settings, best: Trial) -> str:
    return (
        f"# Written by tools/autotune.py: {describe(best.candidate)}; "
        f"estimated {best.steps_per_second:,.1f} steps/s.\n"
        "# It learns the same bits as the default.\n" + to_yaml(applied(settings, best.candidate))
    )
