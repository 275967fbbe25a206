"""The training commands: flags -> plan -> run. Nothing here imports torch before the input is known to be good."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from parallel_ppo.config import STOP_CONDITIONS, Settings, check_sections, load_settings, read_yaml, to_yaml
from parallel_ppo.envs import names
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.requeue import Requeue
from parallel_ppo.signals import Signals

CONFIG = Path(__file__).resolve().parent.parent / "config"
DEFAULT_HOURS = 1.0

# flag -> (key, type, help)
COMMON_FLAGS: dict[str, tuple[str, Any, str]] = {
    "--duration": (
        "training.duration",
        float,
        "stop after this many hours of training, cumulative over resumes",
    ),
    "--total-timesteps": (
        "training.total_timesteps",
        int,
        "stop after this many environment steps, rounded up to an iteration",
    ),
    "--env": (
        "env.id",
        str,
        "a Procgen game (coinrun, procgen-coinrun-v0, procgen:procgen-coinrun-v0) or a Gymnasium id",
    ),
    "--num-envs": ("env.num_envs", int, "environments in total"),
    "--num-levels": ("env.num_levels", int, "Procgen: number of training levels, 0 for all"),
    "--start-level": ("env.start_level", int, "Procgen: first level"),
    "--distribution-mode": ("env.distribution_mode", str, "Procgen: easy, hard, ..."),
    "--n-steps": ("training.n_steps", int, "steps of each environment per iteration"),
    "--n-epochs": ("training.n_epochs", int, "passes over the samples of an iteration"),
    "--batch-size": ("training.batch_size", int, "samples of a minibatch"),
    "--learning-rate": ("training.learning_rate", float, "Adam's step size"),
    "--policy": ("training.policy", str, "impala, nature, mlp or auto"),
    "--seed": ("training.seed", int, "decides, with the learning settings, what is learned"),
}
PARALLEL_FLAGS = {
    "--num-workers": (
        "parallel.num_workers",
        "number or auto",
        "worker processes; never changes what is learned",
    ),
    "--num-envs-per-worker": (
        "parallel.num_envs_per_worker",
        int,
        "with --num-workers: sets --num-envs to the product",
    ),
}
SEQUENTIAL_FLAGS = {
    "--num-threads": (
        "hardware.num_threads",
        "number or auto",
        "torch threads; 1 gives the same bits as parallel",
    ),
}


class SteadyStream:
    """Output that nobody reads any more (a closed pipe, a lost terminal) must not end a run."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def keep_writing() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, SteadyStream):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, SteadyStream(stream))


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see --help")


def number_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'auto'") from None


def build_parser(description: str, flags: dict[str, tuple[str, Any, str]], example: str) -> Parser:
    parser = Parser(description=description, epilog=f"example: {example}", allow_abbrev=False)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML settings (default: the shipped ones for the environment)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="where the run is written (default: the next free runs/<kind>-N)",
    )
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR, bit for bit")
    for flag, (key, kind, text) in flags.items():
        converter = number_or_auto if isinstance(kind, str) else kind
        parser.add_argument(
            flag,
            dest=key,
            type=converter,
            default=argparse.SUPPRESS,
            metavar=flag[2:].split("-")[-1].upper(),
            help=f"{text} [{key}]",
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other setting, such as training.gamma=0.99",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved settings as YAML and leave"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="write every phase and wait for ui.perfetto.dev (default: trace-N.json in the run directory)",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    parser.add_argument(
        "--trust-checkpoint", action="store_true", help="resume environment states that another user wrote"
    )
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="when preempted, ask SLURM to start this job again; then continue what --output-dir holds",
    )
    return parser


def flag_values(arguments: argparse.Namespace) -> dict[str, Any]:
    values = {key: value for key, value in vars(arguments).items() if "." in key}
    for item in arguments.set:
        key, equals, text = item.partition("=")
        if not equals or key.count(".") != 1:
            raise InputError(f"--set {item}: expected section.key=value, such as training.gamma=0.99")
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"--set {item}: the value is not valid YAML") from None
    return values


def shipped_config(env_id: str | None, kind: str) -> Path | None:
    """The configuration that comes with the project for an environment, if there is one."""
    if env_id is None or names.procgen_game(env_id) is not None:
        return CONFIG / f"ppo_{kind}.yaml"
    name = env_id.rpartition(":")[2].rpartition("-v")[0].lower()
    path = CONFIG / f"{name}.yaml"
    return path if path.exists() else None


def settings_from(arguments: argparse.Namespace, kind: str, say: Any) -> Settings:
    flags = flag_values(arguments)
    base: dict[str, Any] = {}
    file = arguments.config
    if arguments.resume is not None:
        if not arguments.resume.is_dir():
            raise InputError(
                f"--resume {arguments.resume}: no such directory; expected the directory of an earlier run"
            )
        base = read_yaml(arguments.resume / "config.yaml")
        check_sections(base, str(arguments.resume / "config.yaml"))
        if any(f"training.{stop}" in flags for stop in STOP_CONDITIONS):
            base["training"] = {
                key: value for key, value in base.get("training", {}).items() if key not in STOP_CONDITIONS
            }
    elif file is None:
        file = shipped_config(flags.get("env.id"), kind)
        if file is not None and file.name != f"ppo_{kind}.yaml":
            say(f"using {file.relative_to(CONFIG.parent)} for {flags['env.id']}")
    settings = load_settings(file=file, flags=flags, base=base)
    if settings.training.duration is None and settings.training.total_timesteps is None:
        settings = settings.changed("training", duration=DEFAULT_HOURS)
    return settings


def execute(parser: Parser, kind: str, argv: Sequence[str] | None = None) -> int:
    """What every training script calls. One line and an exit code for whatever goes wrong."""
    keep_writing()
    signals = Signals()
    try:
        return _execute(parser.parse_args(argv), kind, signals)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.code)
    finally:
        signals.close()


def _execute(arguments: argparse.Namespace, kind: str, signals: Signals) -> int:
    from parallel_ppo.placement import set_thread_variables
    from parallel_ppo.planning import make_plan

    set_thread_variables(1)
    say = (lambda line: None) if arguments.quiet or arguments.print_config else print
    requeue = Requeue(arguments.requeue)
    signals.before_leaving = requeue.ask_if_preempted
    if requeue.should_continue(arguments.output_dir) and arguments.resume is None:
        arguments.resume, arguments.output_dir = arguments.output_dir, None
    settings = settings_from(arguments, kind, say)
    output = getattr(arguments, "log_dir", None) or arguments.output_dir
    if output is None and arguments.resume is None:
        output = getattr(arguments, "default_output", None)
    checkpoints = getattr(arguments, "checkpoint_dir", None) if arguments.resume is None else None
    plan = make_plan(
        settings,
        kind=kind,
        output=output,
        checkpoints=checkpoints,
        resume=arguments.resume,
        trust=arguments.trust_checkpoint,
        trace=arguments.trace,
    )
    if arguments.print_config:
        print(to_yaml(plan.settings), end="")
        return ExitCode.DONE
    nursery = None
    if kind == "parallel":
        from parallel_ppo.nursery import Nursery

        nursery = Nursery(plan.settings, plan.spec)  # imports torch while this process does
    try:
        from parallel_ppo import session
        from parallel_ppo.display import make_display

        code = session.run(plan, make_display(arguments.quiet), nursery, signals)
        requeue.ask_if_preempted(code)
        return int(code)
    finally:
        if nursery is not None:
            nursery.close()


# --- the commands ---------------------------------------------------------------------------------------------------------


def train_parallel(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(
        "Train PPO with worker processes on all cores, for a time or a number of steps.",
        COMMON_FLAGS | PARALLEL_FLAGS,
        "train_parallel_timed.py --env coinrun --duration 1.0 --num-workers auto",
    )
    return execute(parser, "parallel", argv)


def train_sequential(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(
        "Train PPO in one process: the sequential twin of train_parallel_timed.py.",
        COMMON_FLAGS | SEQUENTIAL_FLAGS,
        "train_timed.py --env coinrun --duration 1.0 --num-threads auto",
    )
    return execute(parser, "sequential", argv)


def train_ppo_sequential(argv: Sequence[str] | None = None) -> int:
    """The same as `train_sequential`, with the places people know from before."""
    parser = build_parser(
        "Train PPO in one process, with logs and checkpoints in places of their own.",
        COMMON_FLAGS | SEQUENTIAL_FLAGS,
        "train_ppo_sequential.py --config config/ppo_sequential.yaml --env procgen:procgen-starpilot-v0 --num-envs 64 --total-timesteps 50000000",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="metrics, summary and TensorBoard (default: logs/PPO_Sequential)",
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        default=Path("checkpoints/ppo_sequential"),
        help="default: %(default)s",
    )
    parser.set_defaults(default_output=Path("logs/PPO_Sequential"))
    return execute(parser, "sequential", argv)
