"""The training commands: flags -> plan -> run. Nothing here imports torch before the input is known to be good."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from parallel_ppo.cluster.nodes import ALONE, identify, settings_from_environment
from parallel_ppo.commands.requeue import Requeue
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.machine.signals import Signals
from parallel_ppo.settings import env_names
from parallel_ppo.settings.layers import check_sections, load_settings, read_yaml, to_yaml
from parallel_ppo.settings.schema import STOP_CONDITIONS, Settings

CONFIG = Path(__file__).resolve().parents[2] / "config"
DEFAULT_CONFIG = {
    "parallel": "ppo_parallel.yaml",
    "sequential": "ppo_sequential.yaml",
    "cluster": "ppo_cpu_cluster.yaml",
}
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
CLUSTER_FLAGS = {
    "--num-workers": (
        "parallel.num_workers",
        "number or auto",
        "worker processes of each node; never changes what is learned",
    ),
    "--nnodes": ("cluster.nnodes", int, "nodes in total"),
    "--master-addr": ("cluster.master_addr", str, "address of node 0, on the private network"),
    "--master-port": ("cluster.master_port", int, "port of node 0"),
    "--interface": (
        "cluster.interface",
        str,
        "network interface (default: the one that leads to node 0)",
    ),
    "--timeout": ("cluster.timeout", float, "seconds without a word from a node until it counts as lost"),
    "--join-timeout": ("cluster.join_timeout", float, "seconds to wait for all nodes at the start"),
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
    if env_id is None or env_names.procgen_game(env_id) is not None:
        return CONFIG / DEFAULT_CONFIG[kind]
    name = env_id.rpartition(":")[2].rpartition("-v")[0].lower()
    path = CONFIG / f"{name}.yaml"
    return path if path.exists() else None


def settings_from(arguments: argparse.Namespace, kind: str, say: Any) -> Settings:
    flags = flag_values(arguments)
    if kind == "cluster":
        flags = settings_from_environment(os.environ) | flags
    base: dict[str, Any] = {}
    file = arguments.config
    if arguments.resume is not None:
        if not arguments.resume.is_dir() and not _follows(arguments):
            raise InputError(
                f"--resume {arguments.resume}: no such directory; expected the directory of an earlier run"
            )
        base = read_yaml(arguments.resume / "config.yaml") if arguments.resume.is_dir() else {}
        check_sections(base, str(arguments.resume / "config.yaml"))
        if base and any(f"training.{stop}" in flags for stop in STOP_CONDITIONS):
            base["training"] = {
                key: value for key, value in base.get("training", {}).items() if key not in STOP_CONDITIONS
            }
    if not base and file is None:
        file = shipped_config(flags.get("env.id"), kind)
        if file is not None and file.name != DEFAULT_CONFIG[kind]:
            say(f"using {file.relative_to(CONFIG.parent)} for {flags['env.id']}")
    settings = load_settings(file=file, flags=flags, base=base)
    if settings.training.duration is None and settings.training.total_timesteps is None:
        settings = settings.changed("training", duration=DEFAULT_HOURS)
    return settings


def _follows(arguments: argparse.Namespace) -> bool:
    """A node that does not lead needs no run directory: it is told the state, and its settings are compared."""
    rank = getattr(arguments, "node_rank", None)
    return str(os.environ.get("RANK", "0") if rank is None else rank) != "0"


def _carry_on(arguments: argparse.Namespace) -> None:
    """Turns --continue into --resume where there is something to resume."""
    root = arguments.output_dir
    if root is None:
        raise InputError("--continue: needs --output-dir to know which run to continue")
    if arguments.resume is None and (root / "config.yaml").is_file():
        arguments.resume = root


def leave(code: int) -> NoReturn:
    """Ends the process without taking down the interpreter and its libraries, which costs half a second of CPU time: a preempted
    job may not have it, and everything is closed by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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
    from parallel_ppo.machine.placement import keep_freed_memory, set_thread_variables
    from parallel_ppo.training.planning import make_plan

    set_thread_variables()
    keep_freed_memory()
    say = (lambda line: None) if arguments.quiet or arguments.print_config else print
    requeue = Requeue(arguments.requeue)
    signals.before_leaving = requeue.ask_if_preempted
    if getattr(arguments, "carry_on", False):
        _carry_on(arguments)
    if requeue.should_continue(arguments.output_dir) and arguments.resume is None:
        arguments.resume, arguments.output_dir = arguments.output_dir, None
    settings = settings_from(arguments, kind, say)
    node = identify(settings, arguments.node_rank, os.environ) if kind == "cluster" else ALONE
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
        node=node,
    )
    if arguments.print_config:
        print(to_yaml(plan.settings), end="")
        return ExitCode.DONE
    fork_server = None
    if not plan.inline:
        from parallel_ppo.workers.fork_server import ForkServer

        fork_server = ForkServer(plan.settings, plan.spec)  # imports torch while this process does
    try:
        from parallel_ppo.records.display import make_display
        from parallel_ppo.training import session

        code = session.run(plan, make_display(arguments.quiet), fork_server, signals)
        requeue.ask_if_preempted(code)
        return int(code)
    finally:
        if fork_server is not None:
            fork_server.close()


# --- the commands ---------------------------------------------------------------------------------------------------------


def train_parallel(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(
        "Train PPO with worker processes on all cores, for a time or a number of steps.",
        COMMON_FLAGS | PARALLEL_FLAGS,
        "train_parallel_timed.py --env coinrun --duration 1.0 --num-workers auto",
    )
    return execute(parser, "parallel", argv)


def train_cluster(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings repeat what our one line says
    parser = build_parser(
        "Train PPO on many CPU nodes: start this on every node, with its own --node-rank, or by torchrun, SLURM or PBS.",
        COMMON_FLAGS | CLUSTER_FLAGS,
        "train_ppo_distributed.py --config config/ppo_cpu_cluster.yaml --num-workers 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500",
    )
    parser.add_argument(
        "--node-rank",
        type=int,
        metavar="RANK",
        help="this node's number, from 0 (default: torchrun's RANK)",
    )
    parser.add_argument(
        "--continue",
        dest="carry_on",
        action="store_true",
        help="resume the run in --output-dir if it holds a checkpoint, else start it: one command for first starts and restarts",
    )
    code = execute(parser, "cluster", argv)
    if code == ExitCode.CLUSTER:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the threads of broken connections would turn an orderly end into an abort
    return code


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
