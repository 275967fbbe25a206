"""The training commands: flags -> plan -> run. Nothing here imports torch before the input is checked."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from parallel_ppo.arguments import Parser, guarded, keep_writing, whole_number
from parallel_ppo.cluster.engines import find_engine
from parallel_ppo.cluster.nodes import ALONE, identify
from parallel_ppo.commands.budgets import one_step_epochs
from parallel_ppo.commands.requeue import Requeue
from parallel_ppo.commands.training_flags import (
    CLUSTER_FLAGS,
    COMMON_FLAGS,
    PARALLEL_FLAGS,
    SEQUENTIAL_FLAGS,
    build_parser,
    flag_values,
    settings_from,
    with_flag,
)
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.lazy_compiler import import_without_compiler
from parallel_ppo.machine.descendants import die_with_parent, watching_descendants
from parallel_ppo.machine.signals import Signals
from parallel_ppo.settings.kinds import is_own
from parallel_ppo.settings.yaml_files import to_yaml

if TYPE_CHECKING:
    from parallel_ppo.records.display import Display
    from parallel_ppo.training.planning import Plan


def leave(code: int) -> NoReturn:
    """Ends the process at once: everything is closed, and taking down the interpreter costs half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Audience(Protocol):
    """The caller of a run that was started from Python: gets the display, and errors as exceptions."""

    display: "Display"
    callbacks: Sequence[Any]  # of training.callbacks

    def planned(self, directory: Path) -> None: ...


def execute(
    parser: Parser, kind: str, argv: Sequence[str] | None = None, audience: Audience | None = None
) -> int:
    """Runs a training command. An error is one line and an exit code."""
    keep_writing()
    signals = Signals()
    try:
        if audience is not None:
            return _parse_and_execute(parser, kind, argv, signals, audience)
        return guarded(_parse_and_execute, parser, kind, argv, signals, None)
    finally:
        signals.close()


def _parse_and_execute(
    parser: Parser, kind: str, argv: Sequence[str] | None, signals: Signals, audience: Audience | None
) -> int:
    arguments = parser.parse_args(argv)
    try:
        return _execute(arguments, kind, signals, audience)
    except InputError as error:
        named = InputError(with_flag(str(error), parser, arguments))
        _report_to_torchrun(named)
        raise named from None
    except RunError as error:
        _report_to_torchrun(error)
        raise


def _report_to_torchrun(error: RunError) -> None:
    """torchrun ends with its own report, far below our line: write the line there as well."""
    file, line = os.environ.get("TORCHELASTIC_ERROR_FILE"), f"error: {error}"
    if file:
        more = {"py_callstack": line, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps({"message": {"message": line, "extraInfo": more}}))


def _execute(arguments: argparse.Namespace, kind: str, signals: Signals, audience: Audience | None) -> int:
    from parallel_ppo.machine.placement import keep_freed_memory, set_thread_variables

    set_thread_variables()  # before NumPy is imported: its QR, which draws initial weights, rounds by threads
    keep_freed_memory()
    from parallel_ppo.training.planning import make_plan

    is_silent = arguments.quiet or arguments.print_config

    def report(line: str) -> None:
        if not is_silent:
            print(f"note: {line}", file=sys.stderr)

    requeue = Requeue(arguments.requeue)
    signals.before_leaving = requeue.ask_after
    if getattr(arguments, "carry_on", False):
        _carry_on(arguments)
    if requeue.should_continue(arguments.output_dir) and arguments.resume is None:
        arguments.resume, arguments.output_dir = arguments.output_dir, None
    settings = settings_from(arguments, kind, report)
    node = identify(settings, arguments.node_rank, os.environ) if kind == "cluster" else ALONE
    plan = make_plan(
        settings,
        kind=kind,
        output=getattr(arguments, "log_dir", None) or arguments.output_dir,
        checkpoints=getattr(arguments, "checkpoint_dir", None) if arguments.resume is None else None,
        resume=arguments.resume,
        trust=arguments.trust_checkpoint,
        trace=arguments.trace,
        node=node,
    )
    if plan.settings.training.init_from is not None:
        plan = plan._replace(initial=_initial_arrays(plan))
    if arguments.resume is None and (warning := one_step_epochs(plan.settings, flag_values(arguments))):
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.print_config:
        print(to_yaml(plan.settings), end="")
        return ExitCode.DONE
    # A run that was started from Python shares its process with other code, and so its children.
    is_ours = plan.inline and audience is None
    with watching_descendants() if is_ours else contextlib.nullcontext():
        code = _run(plan, arguments, signals, audience)
    requeue.ask_after(signals.pending.signal_name if signals.pending is not None else None)
    return int(code)


def _initial_arrays(plan: "Plan") -> dict[str, Any]:
    """For a run that has no checkpoint yet; other nodes receive the state."""
    from parallel_ppo.training import checkpoint

    if not plan.node.leads or checkpoint.steps(plan.directory.checkpoints):
        return {}
    from parallel_ppo.evaluation.policy_files import initial_arrays

    return initial_arrays(plan.settings, plan.spec, trust=plan.trust)


def _run(
    plan: "Plan", arguments: argparse.Namespace, signals: Signals, audience: Audience | None
) -> ExitCode:
    fork_server = None
    plan.directory.claim()
    if not plan.inline:
        from parallel_ppo.workers.fork_server import ForkServer

        fork_server = ForkServer(plan.settings, plan.spec)  # imports torch while this process does
    try:
        if not is_own(plan.settings.training.policy):
            import_without_compiler()
        from parallel_ppo.records.display import make_display
        from parallel_ppo.training import session

        callbacks: Sequence[Any] = ()
        display = make_display(arguments.quiet, arguments.verbose)
        if audience is not None:
            audience.planned(plan.directory.root)
            display, callbacks = audience.display, audience.callbacks
        return session.train(
            plan, display, fork_server, signals, verbose=arguments.verbose, callbacks=callbacks
        )
    finally:
        plan.directory.close()
        if fork_server is not None:
            fork_server.close()


def _carry_on(arguments: argparse.Namespace) -> None:
    """Turns --continue into --resume where there is something to resume."""
    root = arguments.output_dir
    if root is None:
        raise InputError("--continue: needs --output-dir to know which run to continue")
    if arguments.resume is None and (root / "config.yaml").is_file():
        arguments.resume = root


# --- the commands -------------------------------------------------------------------------------------------


def train_parallel(argv: Sequence[str] | None = None, audience: Audience | None = None) -> int:
    parser = build_parser(
        "Train PPO with worker processes on all cores, for a time or a number of steps.",
        COMMON_FLAGS | PARALLEL_FLAGS,
        (
            "train_parallel_timed.py --env coinrun --duration 1.0 --num-workers auto",
            "train_parallel_timed.py --env CartPole-v1 --total-timesteps 1e5",
            "train_parallel_timed.py --resume parallel-1 --duration 90m",
        ),
    )
    return execute(parser, "parallel", argv, audience)


def train_cluster(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings repeat what our one line says
    engine = find_engine(os.environ)
    if engine is not None and engine.name == "torchrun":
        die_with_parent(signal.SIGTERM)  # a node whose agent was killed saves and ends, and so do the others
    parser = build_parser(
        "Train PPO on many CPU nodes: start this on every node with its own --node-rank, or with torchrun,"
        " SLURM or PBS.",
        COMMON_FLAGS | CLUSTER_FLAGS,
        (
            (
                "train_ppo_distributed.py --config config/ppo_cpu_cluster.yaml --num-workers 4 \\\n"
                "      --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500"
            ),
        ),
    )
    parser.group("workers and nodes").add_argument(
        "--node-rank",
        type=whole_number,
        metavar="RANK",
        help="this node's number, from 0 (default: torchrun's RANK)",
    )
    parser.group("budget").add_argument(
        "--continue",
        dest="carry_on",
        action="store_true",
        help=(
            "resume the run in --output-dir if there is one, else start it: one command for first starts and"
            " restarts"
        ),
    )
    parser.group("workers and nodes").add_argument(
        "--allow-different-nodes",
        dest="cluster.allow_different_nodes",
        action="store_true",
        default=argparse.SUPPRESS,
        help="go on when nodes have different libraries, kernels or instruction sets, with bit_exact: false",
    )
    code = execute(parser, "cluster", argv)
    if code == ExitCode.CLUSTER:
        leave(code)  # the threads of broken connections would turn an orderly end into an abort
    return code


def train_sequential(argv: Sequence[str] | None = None, audience: Audience | None = None) -> int:
    parser = build_parser(
        "Train PPO in one process.",
        COMMON_FLAGS | SEQUENTIAL_FLAGS,
        ("train_timed.py --env coinrun --duration 1.0 --num-threads auto",),
    )
    return execute(parser, "sequential", argv, audience)


def train_ppo_sequential(argv: Sequence[str] | None = None) -> int:
    """The same as `train_sequential`, with separate directories for logs and checkpoints."""
    parser = build_parser(
        "Train PPO in one process, with separate directories for logs and checkpoints.",
        COMMON_FLAGS | SEQUENTIAL_FLAGS,
        (
            (
                "train_ppo_sequential.py --config config/ppo_sequential.yaml --env"
                " procgen:procgen-starpilot-v0 --total-timesteps 50000000"
            ),
        ),
    )
    parser.group("output").add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="metrics, summary and TensorBoard (default: the next free runs/sequential-N)",
    )
    parser.group("output").add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="default: checkpoints in the run directory"
    )
    return execute(parser, "sequential", argv)
