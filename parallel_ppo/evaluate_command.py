"""`evaluate.py`: how good is a policy, on the levels it was trained on and on others."""

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from parallel_ppo import weights as weight_files
from parallel_ppo.checkpoint import write_atomically
from parallel_ppo.cli import Parser, number_or_auto
from parallel_ppo.config import EnvSettings, Settings
from parallel_ppo.envs import names
from parallel_ppo.envs.build import probe
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.evaluation import PARTS, SLOTS, Played, has_unseen_levels, num_slices
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.machine import read_machine
from parallel_ppo.placement import plan_placement, set_thread_variables
from parallel_ppo.version import VERSION
from parallel_ppo.weights import Filled, Weights

BAR_AFTER = 2.0  # seconds
TABLE_WIDTH = 100
MAX_EPISODES = 10_000
PATIENCE = 3600.0  # seconds for one slice; environments without an end are cut by --max-steps


class Subject(NamedTuple):
    """A policy and the environment it is to be looked at in."""

    weights: Weights
    settings: Settings
    spec: EnvSpec
    filled: Filled


# --- what evaluate.py and play.py share -----------------------------------------------------------------------------------


def add_policy_flags(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="FILE_OR_RUN_DIR",
        help="weights (.safetensors), a checkpoint (RUN/checkpoints/best), or the directory of a run: its latest checkpoint",
    )
    parser.add_argument("--env", metavar="ID", help="another environment than the one it was trained in")
    parser.add_argument(
        "--seed", type=int, default=0, help="which episodes are played (default: %(default)s)"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most likely action instead of drawing one"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="let weights that another user wrote import their environment's modules and wrappers",
    )


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def load_subject(arguments: argparse.Namespace, **evaluation: Any) -> Subject:
    """Everything that can be wrong with the policy or its environment is told here."""
    if not 0 <= arguments.seed < 2**63:
        raise InputError(f"--seed {arguments.seed}: expected a number from 0 to 2^63 - 1")
    loaded, lines = weight_files.load(arguments.checkpoint, trust=arguments.trust_checkpoint)
    for line in lines:
        print(line, file=sys.stderr)
    env = chosen_env(loaded.settings.env, arguments.env)
    settings = loaded.settings.model_copy(update={"env": env})
    settings = settings.changed("training", seed=arguments.seed).changed(
        "evaluation", interval=1, deterministic=arguments.deterministic, **evaluation
    )
    spec = probe(settings)
    return Subject(loaded, settings, spec, weight_files.fill(loaded, settings, spec))


def chosen_env(saved: EnvSettings, env_id: str | None) -> EnvSettings:
    """Another game keeps Procgen's options; another kind of environment starts from its defaults."""
    if env_id is None or names.canonical(env_id) == saved.id:
        return saved
    canonical = names.canonical(env_id)
    if names.procgen_game(canonical) is not None and names.procgen_game(saved.id) is not None:
        return saved.model_copy(update={"id": canonical})
    return EnvSettings(id=canonical)


def chosen_levels(text: str, env: EnvSettings) -> list[str]:
    parts = list(dict.fromkeys(text.split(",")))
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--levels {text}: {part!r} is not known; expected train, test, or train,test")
    if "test" in parts and not has_unseen_levels(env):
        why = (
            "the policy was trained on all levels (env.num_levels 0), so none is unseen"
            if names.procgen_game(env.id) is not None
            else f"{env.id} has no levels"
        )
        raise InputError(f"--levels {text}: {why}; leave --levels out")
    return parts


def guarded(main: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None) -> int:
    """One line and an exit code for whatever goes wrong."""
    try:
        set_thread_variables(1)
        return main(argv)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except OSError as error:
        print(
            f"error: {error.filename or ''}: {error.strerror or error}".replace("error: :", "error:"),
            file=sys.stderr,
        )
        return int(ExitCode.STORAGE)


@contextlib.contextmanager
def progress(what: str, total: int, done: Callable[[], int], quiet: bool) -> Iterator[None]:
    """A bar on a terminal for whatever takes longer than two seconds; `done` is asked from another thread."""
    console, stop = Console(stderr=True), threading.Event()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()

    def show() -> None:
        if stop.wait(BAR_AFTER):
            return
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            while not stop.wait(0.25):
                bar.update(task, completed=done())

    thread = threading.Thread(target=show, daemon=True)
    if console.is_terminal and not quiet:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()


# --- evaluate -------------------------------------------------------------------------------------------------------------


def build_parser() -> Parser:
    parser = Parser(
        description="Play episodes with a trained policy and report returns, lengths and successes. The result depends on "
        "the policy, the environment, --seed and --deterministic; not on --num-workers.",
        epilog="example: evaluate.py --checkpoint runs/parallel-1 --num-episodes 100 --levels train,test",
        allow_abbrev=False,
    )
    add_policy_flags(parser)
    parser.add_argument(
        "--num-episodes",
        type=positive,
        default=100,
        metavar="N",
        help="for each of --levels (default: %(default)s)",
    )
    parser.add_argument("--levels", default="train", metavar="PARTS", help="train: the levels of training; test: all others; train,test: both, and the gap (default: %(default)s)")  # fmt: skip
    parser.add_argument("--max-steps", type=positive, default=100_000, metavar="N", help="cut longer episodes and count them as unfinished (default: %(default)s)")  # fmt: skip
    parser.add_argument("--num-workers", type=number_or_auto, default="auto", metavar="N", help="processes, or auto (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--render",
        action="store_true",
        help="also record the first four episodes, as MP4 and GIF beside the JSON",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the JSON goes (default: evaluation.json in the run directory, or beside the weights)")  # fmt: skip
    return parser


def evaluate(argv: Sequence[str] | None = None) -> int:
    return guarded(_evaluate, argv)


def _evaluate(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    if arguments.num_episodes > MAX_EPISODES:
        raise InputError(f"--num-episodes {arguments.num_episodes}: at most {MAX_EPISODES} at once")
    subject = load_subject(arguments, num_episodes=arguments.num_episodes, max_steps=arguments.max_steps)
    parts = chosen_levels(arguments.levels, subject.settings.env)
    output = output_file(arguments.output, subject.weights.path, "evaluation.json", (".json",))
    if arguments.render:
        from parallel_ppo import play_command

        camera = play_command.check_camera(subject, parts[0])
    episodes = play_on_workers(subject, parts, arguments.num_workers, arguments.quiet)
    report = make_report(subject, arguments, episodes)
    write_atomically(output, (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    if not arguments.quiet:
        from parallel_ppo.evaluation_report import table

        console = Console(highlight=False)
        console.width = max(console.width, TABLE_WIDTH)
        console.print(f"{report['env_id']}  step {report['env_steps']:,}  {report['num_episodes']} episodes"
                      f"{' (each)' if len(parts) > 1 else ''}  seed {report['seed']}{'  deterministic' if report['deterministic'] else ''}")  # fmt: skip
        console.print(table(report))
        print(f"95 % intervals in brackets; written to {output}")
    if arguments.render:
        play_command.record(camera, output.with_suffix(""), quiet=arguments.quiet)
    return ExitCode.DONE


def output_file(given: Path | None, weights: Path, name: str, suffixes: Sequence[str]) -> Path:
    """Its folder exists afterwards; what cannot be written is told before the work starts."""
    path = given or weight_files.run_root(weights) / name
    if path.suffix not in suffixes:
        raise InputError(f"--output {path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"--output {path}: is a directory; expected a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {path}: its folder cannot be made ({error.strerror})") from None
    return path


def play_on_workers(
    subject: Subject, parts: list[str], workers: int | str, quiet: bool
) -> dict[str, list[Played]]:
    """A pool whose slab is as small as possible, and which is asked for nothing but evaluation."""
    settings = subject.settings.changed("env", num_envs=SLOTS, slice_envs=SLOTS)
    settings = settings.changed("training", n_steps=1, batch_size=SLOTS, lane_samples=None)
    settings = settings.changed("parallel", max_restarts=2, hang_timeout=PATIENCE)
    total = len(parts) * settings.evaluation.num_episodes
    tasks = len(parts) * num_slices(settings.evaluation.num_episodes)
    try:
        placement = plan_placement(
            read_machine(),
            num_workers=None if isinstance(workers, str) else min(workers, tasks),
            pinning="none",
            max_useful=tasks,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    from parallel_ppo.generalization import evaluate as ask
    from parallel_ppo.nursery import Nursery
    from parallel_ppo.pool import ProcessPool
    from parallel_ppo.shared import Memory

    with contextlib.ExitStack() as stack:
        nursery = Nursery(settings, subject.spec)
        stack.callback(nursery.close)
        memory = Memory(settings, subject.spec, len(subject.filled.parameters))
        memory.parameters[:] = subject.filled.parameters
        memory.observation_mean[...] = subject.filled.observation_mean
        memory.observation_scale[...] = subject.filled.observation_scale
        memory.evaluation.fill(np.nan)
        stack.enter_context(
            progress("evaluating", total, lambda: int(np.isfinite(memory.evaluation[:, :, 0]).sum()), quiet)
        )
        pool = ProcessPool(settings, memory, nursery, list(placement.worker_cpus), 0, _warn)
        stack.callback(pool.close)
        return ask(pool, memory, settings, parts=parts, iteration=0)


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def make_report(
    subject: Subject, arguments: argparse.Namespace, episodes: dict[str, list[Played]]
) -> dict[str, Any]:
    """Nothing in it depends on the clock or the number of workers."""
    from parallel_ppo.evaluation_report import gap_report, part_report

    env = subject.settings.env
    both = "train" in episodes and "test" in episodes
    return {
        "version": VERSION,
        "checkpoint": str(arguments.checkpoint),
        "policy_sha256": subject.filled.policy_sha256,
        "env_steps": subject.weights.env_steps,
        "env_id": env.id,
        "trained_on": subject.weights.settings.env.id,
        "distribution_mode": env.distribution_mode if names.procgen_game(env.id) else None,
        "policy": subject.settings.training.policy,
        "seed": arguments.seed,
        "deterministic": arguments.deterministic,
        "num_episodes": arguments.num_episodes,
        "max_steps": arguments.max_steps,
        "levels": {part: part_report(played, env, part) for part, played in episodes.items()},
        "gap": gap_report(episodes["train"], episodes["test"], env) if both else None,
    }
