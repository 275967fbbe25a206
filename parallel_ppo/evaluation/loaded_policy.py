"""A policy to be looked at: what `evaluate.py` and `play.py` share, from flags to checked weights to endings."""

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from parallel_ppo.commands.train import Parser
from parallel_ppo.envs.build import probe
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.evaluation import policy_files as weight_files
from parallel_ppo.evaluation.policy_files import Filled, Weights
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.machine.placement import set_thread_variables
from parallel_ppo.printable import printable
from parallel_ppo.settings import env_names
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.workers.playing import LEVEL_SETS, has_unseen_levels

BAR_AFTER = 2.0  # seconds


class Subject(NamedTuple):
    """A policy and the environment it is to be looked at in."""

    weights: Weights
    settings: Settings
    spec: EnvSpec
    filled: Filled


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
        print(printable(line), file=sys.stderr)
    env = chosen_env(loaded.settings.env, arguments.env)
    settings = loaded.settings.model_copy(update={"env": env})
    settings = settings.changed("training", seed=arguments.seed).changed(
        "evaluation", interval=1, deterministic=arguments.deterministic, **evaluation
    )
    spec = probe(settings)
    filled = weight_files.fill(loaded, settings, spec)
    return Subject(loaded, usable_kernels(settings, spec), spec, filled)


def usable_kernels(settings: Settings, spec: EnvSpec) -> Settings:
    """A policy that was trained on our own kernels can be looked at where they do not run."""
    if settings.training.kernels != "native":
        return settings
    reason = unusable(settings.training.policy, spec.observation_shape)
    if reason is None:
        return settings
    print(
        f"note: trained with native kernels, which do not run here ({' '.join(reason.split())[:200]}); torch's round a little differently",
        file=sys.stderr,
    )
    return settings.changed("training", kernels="torch")


def chosen_env(saved: EnvSettings, env_id: str | None) -> EnvSettings:
    """Another game keeps Procgen's options; another kind of environment starts from its defaults."""
    if env_id is None or env_names.canonical(env_id) == saved.id:
        return saved
    canonical = env_names.canonical(env_id)
    if env_names.procgen_game(canonical) is not None and env_names.procgen_game(saved.id) is not None:
        return saved.model_copy(update={"id": canonical})
    return EnvSettings(id=canonical)


def chosen_levels(text: str, env: EnvSettings) -> list[str]:
    parts = list(dict.fromkeys(text.split(",")))
    for part in parts:
        if part not in LEVEL_SETS:
            raise InputError(f"--levels {text}: {part!r} is not known; expected train, test, or train,test")
    if "test" in parts and not has_unseen_levels(env):
        why = (
            "the policy was trained on all levels (env.num_levels 0), so none is unseen"
            if env_names.procgen_game(env.id) is not None
            else f"{env.id} has no levels"
        )
        raise InputError(f"--levels {text}: {why}; leave --levels out")
    return parts


def guarded(main: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None) -> int:
    """One line and an exit code for whatever goes wrong."""
    try:
        set_thread_variables()
        return main(argv)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except OSError as error:
        print(
            printable(f"error: {error.filename or ''}: {error.strerror or error}").replace(
                "error: :", "error:"
            ),
            file=sys.stderr,
        )
        return int(ExitCode.STORAGE)


@contextlib.contextmanager
def progress(what: str, total: int, done: Callable[[], int], quiet: bool) -> Iterator[None]:
    """A bar on a terminal for whatever takes longer than two seconds; `done` is asked from another thread."""
    console, stop = Console(stderr=True), threading.Event()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )

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


def output_file(given: Path | None, weights: Path, name: str, suffixes: Sequence[str]) -> Path:
    """Its folder exists afterwards; what cannot be written is told before the work starts."""
    path = given or weight_files.run_root(weights) / name
    if path.suffix not in suffixes:
        raise InputError(
            f"--output {path}: expected a name that ends in {' or '.join(filter(None, suffixes))}"
        )
    if path.is_dir():
        raise InputError(f"--output {path}: is a directory; expected a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {path}: its folder cannot be made ({error.strerror})") from None
    return path
