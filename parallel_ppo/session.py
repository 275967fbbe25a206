"""One session of a run: check, build, train, and leave everything in order however it ends."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parallel_ppo import checkpoint
from parallel_ppo.bottleneck import Circumstances, limit
from parallel_ppo.budget import Budget
from parallel_ppo.config import learning_settings, to_yaml
from parallel_ppo.coordinator import Coordinator
from parallel_ppo.display import Display
from parallel_ppo.exits import (
    ExitCode,
    InputError,
    Interrupted,
    RunError,
    StorageError,
)
from parallel_ppo.nursery import Nursery
from parallel_ppo.placement import descriptor_need_error, memory_need_error, plan_placement
from parallel_ppo.planning import Plan
from parallel_ppo.policies.policy import Policy, bind, initialise, num_flat, sha256, views
from parallel_ppo.pool import InlinePool, Pool, ProcessPool
from parallel_ppo.recorder import Recorder
from parallel_ppo.shared import Memory, bytes_needed, settle
from parallel_ppo.signals import Signals
from parallel_ppo.state import TrainingState
from parallel_ppo.timeline import Phase, process_started
from parallel_ppo.trace import ChromeTrace, NoTrace, Trace
from parallel_ppo.worker import Worker

PROCESS_BYTES = 300_000_000  # what a worker needs beside the shared memory, roughly
DESCRIPTORS_PER_WORKER = 4


def disk_need_error(plan: Plan, num_parameters: int) -> str | None:
    """One line when the disk has no room for the checkpoints that will be kept and the one being written."""
    settings, spec = plan.settings, plan.spec
    observation = int(np.prod(spec.observation_shape)) * np.dtype(spec.observation_dtype).itemsize
    one = 12 * num_parameters + settings.env.num_envs * (observation + min(spec.state_bytes, 65536))
    need = one * (min(settings.logging.keep_checkpoints, 3) + 2)
    place = plan.directory.checkpoints
    while not place.exists():
        place = place.parent
    kept = [file for step in checkpoint.steps(plan.directory.checkpoints) for file in step.glob("*")]
    free = shutil.disk_usage(place).free + sum(file.lstat().st_size for file in kept)  # older ones make room
    if free >= need:
        return None
    return (
        f"{plan.directory.checkpoints}: the run's checkpoints need {need:,} bytes of disk but {free:,} are free: "
        "free some space, lower logging.keep_checkpoints, or give another --output-dir"
    )


def check_resources(plan: Plan, num_parameters: int) -> None:
    workers = plan.placement.num_workers if plan.kind == "parallel" else 0
    need = bytes_needed(plan.settings, plan.spec, num_parameters) + (workers + 1) * PROCESS_BYTES
    for problem in (
        memory_need_error(need, plan.machine),
        descriptor_need_error(64 + DESCRIPTORS_PER_WORKER * workers, plan.machine),
        disk_need_error(plan, num_parameters),
    ):
        if problem is not None:
            raise InputError(problem)


def run(plan: Plan, display: Display, nursery: Nursery | None, signals: Signals) -> ExitCode:
    """Trains. `nursery` is already warming up (None: everything happens in this process)."""
    settings = plan.settings
    torch.set_num_threads(1)
    with torch.device("meta"):  # counts without allocating
        check_resources(plan, num_flat(Policy(settings, plan.spec)))
    policy = Policy(settings, plan.spec)
    memory = Memory(settings, plan.spec, num_flat(policy))
    settled = settle(memory, lock=settings.hardware.lock_memory, huge_pages=settings.hardware.huge_pages)
    state = TrainingState(settings, memory)
    bind(policy, state.parameters)
    budget = Budget(settings.training)
    with contextlib.ExitStack() as stack:
        stack.callback(plan.directory.close)
        plan.directory.open()
        if not (plan.resume and _resume(plan, state, policy, display)):
            initialise(policy, state.parameters, settings.training.seed)
        plan.directory.write(plan.directory.root / "config.yaml", to_yaml(settings).encode())
        pool = _start_pool(plan, memory, state, nursery, display, signals)
        stack.callback(pool.close)
        _describe(plan, state, settled)
        trace = _open_trace(plan, pool, display)
        recorder = _make_recorder(plan, policy, display, budget, state.counters.iteration, trace)
        stack.callback(recorder.close)
        signals.started()
        display.start(_header(plan, pool))
        stack.callback(display.close)
        return _train(plan, Coordinator(settings, state, pool, budget, recorder, signals), policy, display)


def _make_recorder(
    plan: Plan, policy: Policy, display: Display, budget: Budget, last_iteration: int, trace: Trace
) -> Recorder:
    try:
        return Recorder(
            plan.settings, plan.spec, policy, plan.directory, display, budget, last_iteration, trace
        )
    except OSError as error:
        raise StorageError(f"{plan.directory.root}: the logs cannot be written ({error})") from None


def _resume(plan: Plan, state: TrainingState, policy: Policy, display: Display) -> bool:
    """False when the run was ended before its first checkpoint: it starts again, and nothing is lost."""

    def flat(weights: dict[str, np.ndarray]) -> torch.Tensor:
        vector = torch.zeros(len(state.parameters))
        for name, view in views(policy, vector).items():
            view.copy_(torch.from_numpy(weights[name]))
        return vector

    shapes = {name: tuple(view.shape) for name, view in views(policy, state.parameters).items()}
    expected = checkpoint.Expected(
        state.snapshot(),
        shapes,
        learning_settings(plan.settings),
        lambda weights: sha256(policy, flat(weights)),
    )
    found = checkpoint.newest(plan.directory.checkpoints, trust=plan.trust, expected=expected)
    if found is None:
        if plan.directory.has_begun:
            raise InputError(f"{plan.directory.checkpoints}: holds no checkpoint; it was moved or deleted")
        display.note(f"{plan.directory.root} has no checkpoint yet: starting from the beginning")
        return False
    path, snapshot, weights, refused = found
    for line in refused:
        display.warn(f"{line}; {path.name} is used instead")
    snapshot.arrays["parameters"] = flat(weights).numpy()
    state.restore(snapshot)
    display.note(f"resuming {plan.directory.root} from step {state.counters.env_steps:,}")
    return True


def _note_event(plan: Plan) -> Callable[[dict[str, Any]], None]:
    """What happened to the workers, in faults.jsonl."""

    def note(event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), open(plan.directory.root / "faults.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")

    return note


def _start_pool(
    plan: Plan,
    memory: Memory,
    state: TrainingState,
    nursery: Nursery | None,
    display: Display,
    signals: Signals,
) -> Pool:
    first = state.counters.iteration
    if nursery is None:
        threads = plan.settings.hardware.num_threads
        assert isinstance(threads, int)
        torch.set_num_threads(threads)
        return InlinePool(Worker(plan.settings, plan.spec, memory), first, signals)
    cpus, note = list(plan.placement.worker_cpus), _note_event(plan)
    return ProcessPool(plan.settings, memory, nursery, cpus, first, display.warn, signals, note)


def _open_trace(plan: Plan, pool: Pool, display: Display) -> Trace:
    if plan.trace is None:
        return NoTrace()
    began, now = process_started(), time.monotonic()
    trace = ChromeTrace(plan.trace, origin=began, num_workers=pool.num_workers, warn=display.warn)
    trace.add([Phase("start-up", began, now)], [])
    return trace


def _describe(plan: Plan, state: TrainingState, settled: dict[str, bool]) -> None:
    session = {
        "first_iteration": state.counters.iteration,
        "env_steps": state.counters.env_steps,
        "memory": settled,
        "pid": os.getpid(),
    }
    plan.directory.describe(kind=plan.kind, seed=plan.settings.training.seed, session=session,
                            machine=plan.machine.as_dict(), placement=plan.placement.as_dict())  # fmt: skip


def _header(plan: Plan, pool: Pool) -> list[str]:
    settings, shape = plan.settings, plan.settings.shape
    who = (
        f"{pool.num_workers} workers"
        if plan.kind == "parallel"
        else f"sequential, {settings.hardware.num_threads} threads"
    )
    return [
        f"{settings.env.id}  {settings.training.policy}  seed {settings.training.seed}  {who}  -> {plan.directory.root}",
        f"{shape.num_envs} envs x {shape.num_steps} steps, {shape.num_epochs} epochs of {shape.num_minibatches} x {shape.batch_size}, "
        f"{shape.num_slices} slices of {shape.slice_envs}, {shape.num_lanes} lanes of {max(shape.lane_sizes)}",
    ]


# --- endings --------------------------------------------------------------------------------------------------------------


def _train(plan: Plan, coordinator: Coordinator, policy: Policy, display: Display) -> ExitCode:
    """However it ends: what was reached is saved, summed up and said in one line."""
    error: RunError | None = None
    code, reason = ExitCode.DONE, ""
    try:
        reason = coordinator.train()
    except Interrupted as interruption:
        code, reason = interruption.code, interruption.signal_name
    except RunError as problem:
        error, code = problem, problem.code
        reason = str(problem).splitlines()[0]
    except Exception:  # a mistake of ours; what was learned is not to blame
        coordinator.pool.close()
        _save_end(plan, coordinator, display)
        display.close()
        raise
    if code != ExitCode.DONE:
        coordinator.pool.close()
        coordinator.state.rewind(coordinator.snapshot)
    saved = code != ExitCode.STORAGE and _save_end(plan, coordinator, display)
    if code == ExitCode.DONE and not saved:
        code, reason = ExitCode.STORAGE, "the last checkpoint could not be written"
        error = StorageError(f"{plan.directory.checkpoints}: {reason}; free some space and use --resume")
    limited = _limit(plan, coordinator)
    _summarize(plan, coordinator, policy, reason, code, limited)
    display.close()
    if error is not None:
        raise error
    counters = coordinator.state.counters
    how = {ExitCode.DONE: "done", ExitCode.INTERRUPTED: "interrupted", ExitCode.PREEMPTED: "preempted"}[code]
    after = f"; continue with --resume {plan.directory.root}" if code != ExitCode.DONE else ""
    display.note(
        f"{how}: {counters.env_steps:,} steps in {counters.wall_time:.0f} s, results in {plan.directory.root}{after}"
    )
    if limited is not None:
        display.note(f"limited by {limited}")
    return code


def _save_end(plan: Plan, coordinator: Coordinator, display: Display) -> bool:
    try:
        if coordinator.recorder.save(coordinator.snapshot):
            coordinator.recorder.save_final(coordinator.snapshot, f"ppo_{plan.kind}")
            return True
    except (OSError, StorageError) as problem:
        display.warn(str(problem))
    return False


def _limit(plan: Plan, coordinator: Coordinator) -> str | None:
    recorder, is_parallel = coordinator.recorder, plan.kind == "parallel"
    circumstances = Circumstances(
        shape=plan.settings.shape,
        num_workers=coordinator.pool.num_workers,
        num_cores=plan_placement(plan.machine, num_workers=None, pinning="none").num_workers,
        is_parallel=is_parallel,
        checkpoint_share=recorder.checkpoint_share,
    )
    return limit(recorder.tally, circumstances)


def _summarize(
    plan: Plan, coordinator: Coordinator, policy: Policy, reason: str, code: ExitCode, limited: str | None
) -> None:
    state, recorder = coordinator.state, coordinator.recorder
    counters, returns = state.counters, list(state.recent_returns)
    recorder.meter.sample(time.monotonic(), coordinator.pool.pids)
    summary: dict[str, Any] = {
        "env_id": plan.settings.env.id,
        "policy": plan.settings.training.policy,
        "kind": plan.kind,
        "env_steps": counters.env_steps,
        "iterations": counters.iteration,
        "episodes": counters.episodes,
        "wall_time": counters.wall_time,
        "fps_mean": counters.env_steps / counters.wall_time if counters.wall_time else None,
        "policy_sha256": sha256(policy, state.parameters),
        "final_return_mean": sum(returns) / len(returns) if returns else None,
        "best_return": coordinator.snapshot.counters["best_return"],
        "num_workers": coordinator.pool.num_workers,
        "num_threads": plan.settings.hardware.num_threads if plan.kind == "sequential" else 1,
        "world_size": 1,
        "stop_reason": reason,
        "exit_code": int(code),
        "bit_exact": counters.bit_exact
        and coordinator.pool.exact
        and plan.settings.training.schedule_by != "time",
        "worker_restarts": coordinator.earlier_restarts + coordinator.pool.restarts,
        "peak_rss_mb": recorder.meter.peak_rss_mb,
        "checkpoint_seconds": recorder.checkpoint_seconds,
        "startup_seconds": recorder.startup_seconds,
        "limited_by": limited,
    }
    with contextlib.suppress(OSError):
        plan.directory.summarize(summary)
