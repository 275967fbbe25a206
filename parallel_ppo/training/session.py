"""One session of a run: check, build, train, and end in good order."""

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.exits import (
    ExitCode,
    Interrupted,
    RunError,
    StorageError,
)
from parallel_ppo.machine.cpu_claims import CpuClaims, beside_other_runs
from parallel_ppo.machine.signals import Signals
from parallel_ppo.memory.shared import prefault_and_lock
from parallel_ppo.policies.actor import check_network
from parallel_ppo.policies.parameters import LARGE, initialize, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.printable import count
from parallel_ppo.records.display import Clock, Display, duration_text, make_log
from parallel_ppo.records.timeline import Phase, process_started
from parallel_ppo.records.trace import Trace
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.kinds import is_own
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage import user_key
from parallel_ppo.storage.files import open_to_append
from parallel_ppo.training import ending, loop
from parallel_ppo.training.arithmetic import arithmetic
from parallel_ppo.training.budget import schedule_warnings
from parallel_ppo.training.callbacks import Callback, Callbacks, named_callbacks
from parallel_ppo.training.expected_time import slow_iteration
from parallel_ppo.training.needs import check_resources
from parallel_ppo.training.planning import Plan, check_addresses, share_host
from parallel_ppo.training.recorder import Follower, Recorder
from parallel_ppo.training.resuming import resumes
from parallel_ppo.training.run import Run
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.fork_server import ForkServer
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import NOT_RESTORED, InlinePool, Pool
from parallel_ppo.workers.process_pool import ProcessPool
from parallel_ppo.workers.worker import Worker

PROCESS_ADDRESSES = 500_000_000  # what a worker maps beyond what the coordinator does


def train(
    plan: Plan,
    display: Display,
    fork_server: ForkServer | None,
    signals: Signals,
    *,
    verbose: bool = False,
    callbacks: Sequence[Callback] = (),
) -> ExitCode:
    """Trains. `fork_server` is already starting (None: everything happens in this process)."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        cluster = _join(plan, display, signals)
        stack.callback(cluster.close)
        plan, display = _take_place(plan, cluster, display)
        if plan.settings.hardware.pinning == "auto" and not plan.inline:
            claims = CpuClaims()
            stack.callback(claims.close)
            plan = plan._replace(placement=beside_other_runs(plan.placement, plan.machine, claims))
        with cluster.announcing():
            callbacks = [*named_callbacks(plan.settings.logging.callbacks), *callbacks]
            run, settled = _make_run(plan, cluster, signals, display)
            stack.callback(plan.directory.close)
            _load_state(run)
            if cluster.decide(_already_done(run)) is not None:
                display.note(_already_done_line(run))
                return ExitCode.DONE
            _start(run, settled, fork_server, stack, verbose, callbacks)
        return _train(run)


def _train(run: Run) -> ExitCode:
    code, error = ExitCode.DONE, None
    try:
        with run.cluster.announcing():
            reason = loop.train(run)
        if run.budget.failure is not None:
            raise run.budget.failure
    except Interrupted as interruption:
        code, reason = interruption.code, interruption.signal_name
    except RunError as problem:
        code, reason, error = ExitCode(problem.code), str(problem).splitlines()[0], problem
    except Exception:  # a mistake of ours; the learned state is still good
        run.pool.close()
        if run.plan.node.size == 1:  # other nodes are elsewhere in the loop, and their environments with them
            ending.save_end(run)
        run.display.close()
        raise
    return ending.finish(run, code, reason, error)


def _join(plan: Plan, display: Display, signals: Signals) -> Cluster:
    if plan.node.size == 1:
        return Cluster(plan.settings.sizes)
    from parallel_ppo.cluster.gloo import join  # only runs that need it load it

    portable = not plan.tied_to_machine
    return join(plan.settings, plan.node, plan.machine, signals, display.note, portable=portable)


def _take_place(plan: Plan, cluster: Cluster, display: Display) -> tuple[Plan, Display]:
    """Gives this node its cores and its log. The log is written into this node's --output-dir; without one, the
    first node may choose a numbered directory in runs/, but no other place.
    """
    name = cluster.decide(str(plan.directory.root) if plan.directory.pattern else None)
    plan = share_host(plan, *cluster.place_on_host())
    if plan.node.leads:
        return plan, display
    if plan.directory.root == Path("runs") and re.fullmatch(r"runs/[a-z]+-[0-9]+", name or ""):
        plan.directory.root = Path(str(name))
    root = plan.directory.root
    plan.directory.check_folders()
    return plan, make_log(root / "logs" / f"node-{plan.node.rank}.log", cluster.names[plan.node.rank])


def _make_run(
    plan: Plan, cluster: Cluster, signals: Signals, display: Display
) -> tuple[Run, dict[str, bool]]:
    """Also returns which of the requests for the memory worked."""
    settings = plan.settings
    with torch.device("meta"):  # counts without allocating
        check_resources(plan, num_flat(Policy(settings, plan.spec)))
    if is_own(settings.training.policy):  # with its own weights: those of the run are not drawn yet
        check_network(settings, plan.spec, Policy(settings, plan.spec))
    run = Run(plan, cluster, signals, display)
    check_addresses(PROCESS_ADDRESSES)
    hardware = settings.hardware
    return run, prefault_and_lock(run.memory, lock=hardware.lock_memory, huge_pages=hardware.huge_pages)


def _load_state(run: Run) -> None:
    """Starts from a checkpoint or from the seed, the same on all nodes."""
    plan, state, display = run.plan, run.state, run.display
    plan.directory.open()
    if plan.node.leads:
        user_key.prepare(display.note, display.warn)
    if not (resumes(run)):
        if len(state.parameters) > LARGE:
            display.note(
                f"initializing {len(state.parameters):,} parameters and writing the first checkpoint..."
            )
        initialize(run.policy, state.parameters, run.settings.training.seed)
        state.begin(plan.initial)
    _report_replay_check(plan, state, display)
    state.rewind(run.cluster.share_state(run.memory, state.snapshot()))
    state.counters.bit_exact &= run.cluster.same_bits
    run.snapshot, run.earlier_restarts = state.snapshot(), state.counters.worker_restarts
    run.budget.start(state.counters)


def _start(
    run: Run,
    settled: dict[str, bool],
    fork_server: ForkServer | None,
    stack: contextlib.ExitStack,
    verbose: bool,
    callbacks: Sequence[Callback],
) -> None:
    """Workers, records and the display."""
    plan, display, budget = run.plan, run.display, run.budget
    for line in schedule_warnings(run.settings.training, run.state.counters):
        display.warn(line)
    if run.state.counters.iteration == 0 and (slow := slow_iteration(plan, run.policy)):
        display.warn(slow)
    plan.directory.write(plan.directory.root / "config.yaml", to_yaml(run.settings).encode())
    run.pool = _start_pool(run, fork_server)
    stack.callback(run.pool.close)
    _describe(run, settled)
    if plan.node.leads:
        run.recorder = _make_recorder(run, Callbacks(callbacks, plan.directory.root, budget))
    else:
        run.recorder = Follower(run)
    stack.callback(run.recorder.close)
    display.watch(PhasesOf(run.settings, run.memory, run.cluster.slices, run.pool))
    run.signals.started()
    display.start(
        _header(run, verbose), lambda: Clock(budget.elapsed(), *budget.progress(run.state.counters))
    )
    stack.callback(display.close)


def _report_replay_check(plan: Plan, state: TrainingState, display: Display) -> None:
    env, check = plan.settings.env, plan.replay_check
    why = check.why_inexact(env.id, env.fresh_objects is True)
    if why:
        display.warn(why)
        state.counters.bit_exact = False
    elif check.differs_when_reused:
        display.note(
            f"{env.id} has {check.differs_when_reused} when reused: every episode is"
            " played in a new one (env.fresh_objects: true)"
        )


def _make_recorder(run: Run, callbacks: Callbacks) -> Recorder:
    try:
        return Recorder(run, _open_trace(run), callbacks)
    except OSError as error:
        raise StorageError(f"{run.plan.directory.root}: the logs cannot be written ({error})") from None


def _already_done(run: Run) -> str | None:
    """The budget that a resumed run has spent already, if its end is written down."""
    plan, counters = run.plan, run.state.counters
    if not plan.resume or plan.directory.finished_steps() != counters.env_steps:
        return None
    return run.budget.spent(counters)


def _already_done_line(run: Run) -> str:
    plan, state = run.plan, run.state
    return (
        f"{plan.directory.root}: its budget is spent ({state.counters.env_steps:,} steps in "
        f"{duration_text(state.counters.wall_time)}); give a larger --total-timesteps or --duration to go on"
    )


def _note_event(plan: Plan) -> Callable[[dict[str, Any]], None]:
    """Writes lost and replaced workers to faults.jsonl."""

    def note(event: dict[str, Any]) -> None:
        with (
            contextlib.suppress(OSError),
            open(open_to_append(plan.directory.root / "faults.jsonl"), "a") as file,
        ):
            file.write(json.dumps(event) + "\n")

    return note


def _start_pool(run: Run, fork_server: ForkServer | None) -> Pool:
    plan, memory, cluster, display, signals = run.plan, run.memory, run.cluster, run.display, run.signals
    first = run.state.counters.iteration
    if fork_server is None:
        threads = plan.settings.hardware.num_threads
        assert isinstance(threads, int)
        torch.set_num_threads(threads)
        pool = InlinePool(Worker(plan.settings, plan.spec, memory), cluster.slices, first, signals)
        if not pool.exact:
            display.warn(NOT_RESTORED)
        return pool
    cpus, slices, note = list(plan.placement.worker_cpus), cluster.slices, _note_event(plan)
    return ProcessPool(plan.settings, memory, fork_server, cpus, slices, first, display.warn, signals, note)


def next_trace(root: Path) -> Path:
    names = (root / f"trace-{number}.json" for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _open_trace(run: Run) -> Trace | None:
    plan, pool, display = run.plan, run.pool, run.display
    if plan.trace is None:
        return None
    began, now = process_started(), time.monotonic()
    path = next_trace(plan.directory.root) if plan.trace == Path() else plan.trace
    try:
        trace = Trace(path, origin=began, num_workers=pool.num_workers, warn=display.warn)
    except OSError as error:
        display.warn(f"{path}: cannot be written ({error.strerror}); the run goes on without a trace")
        return None
    trace.add([Phase("start-up", began, now)], [])
    return trace


def _describe(run: Run, settled: dict[str, bool]) -> None:
    plan, state, cluster = run.plan, run.state, run.cluster
    session = {
        "first_iteration": state.counters.iteration,
        "env_steps": state.counters.env_steps,
        "memory": settled,
        "pid": os.getpid(),
        "nodes": cluster.names,
        "schedule_changes": dict(plan.schedule_changes),
        "arithmetic": arithmetic(plan.settings, plan.machine.cpu_model, portable=not plan.tied_to_machine),
    }
    plan.directory.describe(
        kind=plan.kind,
        seed=plan.settings.training.seed,
        session=session,
        machine=plan.machine.as_dict(),
        placement=plan.placement.as_dict(),
    )


def _header(run: Run, verbose: bool) -> list[str]:
    """One line; with `verbose` also how the work is divided and why."""
    plan, pool = run.plan, run.pool
    settings, sizes = plan.settings, plan.settings.sizes
    who = count(pool.num_workers, "worker")
    if plan.inline:
        who = "1 process"
        if settings.hardware.num_threads != 1:
            who += f", {settings.hardware.num_threads} threads"
    if plan.node.size > 1:
        who = f"node {plan.node.rank} of {plan.node.size}, {who} here"
    training = settings.training
    names = f"{training.algorithm}, {training.policy}"
    if settings.curiosity.kind != "none":
        names += f", {settings.curiosity.kind}"
    if settings.recurrence.is_recurrent:
        names += f", {settings.recurrence.kind}"
    env = family_of(settings.env.id).short_name(settings.env.id)
    line = f"{env}  {names}  seed {training.seed}  {who}  -> {plan.directory.root}"
    reasons = "; ".join(plan.tied_to_machine)
    portable = (
        f"portable: false ({reasons})"
        if reasons
        else "portable: true (any x86-64-v3 CPU learns the same bits)"
    )
    if not verbose:
        return [line, portable]
    work = (
        f"{count(sizes.num_envs, 'environment')} x {count(sizes.num_steps, 'step')}, "
        f"{count(sizes.num_epochs, 'epoch')} of {sizes.num_minibatches} x {sizes.batch_size} samples"
    )
    pieces = (
        f"{count(sizes.num_slices, 'slice')} of {sizes.slice_envs}, "
        f"{count(sizes.num_microbatches, 'microbatch')} of {max(sizes.microbatch_sizes)}, "
        f"kernels: {training.kernels}"
    )
    return [*plan.placement.reasons, line, portable, f"{work}, {pieces}"]


class PhasesOf:
    """The progress of the present iteration's phases, for the display."""

    def __init__(self, settings: Settings, memory: Memory, slices: range, pool: Pool) -> None:
        self.memory, self.slices, self.pool = memory, slices, pool
        self.steps = settings.sizes.steps_per_iteration

    def share(self, phase: str) -> float | None:
        if phase in ("collect", "warm-up"):
            return self.memory.share_collected(self.slices)
        if phase == "update" and self.pool.steps is not None:
            return 1 - float(np.isnan(self.memory.step_results[:, -1]).mean())
        return None
