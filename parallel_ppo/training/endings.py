"""How a session ends: what was reached is saved, summed up and said, whatever happened."""

import contextlib
import shlex
import time
from typing import Any

from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.arguments import as_typed
from parallel_ppo.exits import ExitCode, Interrupted, RunError, StorageError
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.policies.parameters import sha256
from parallel_ppo.policies.policy import Policy
from parallel_ppo.printable import count
from parallel_ppo.records.display import Display, duration_text
from parallel_ppo.training.bottleneck import limit
from parallel_ppo.training.coordinator import Coordinator
from parallel_ppo.training.planning import Plan
from parallel_ppo.training.recorder import Recorder
from parallel_ppo.workers.tasks import WarmUp

SCRIPT = {
    "parallel": "train_parallel_timed.py",
    "sequential": "train_timed.py",
    "cluster": "train_ppo_distributed.py",
}


def train(plan: Plan, coordinator: Coordinator, policy: Policy, display: Display) -> ExitCode:
    """However it ends: what was reached is saved, summed up and said in one line."""
    error: RunError | None = None
    code, reason = ExitCode.DONE, ""
    try:
        with coordinator.cluster.announcing():
            _warm_up(coordinator)
            reason = coordinator.train()
        if coordinator.budget.failure is not None:
            raise coordinator.budget.failure
    except Interrupted as interruption:
        code, reason = interruption.code, interruption.signal_name
    except RunError as problem:
        error, code = problem, ExitCode(problem.code)
        reason = str(problem).splitlines()[0]
    except Exception:  # a mistake of ours; what was learned is not to blame
        coordinator.pool.close()
        if plan.node.size == 1:  # other nodes are elsewhere in the loop, and their environments with them
            _save_end(plan, coordinator, display)
        display.close()
        raise
    if code != ExitCode.DONE:
        coordinator.pool.close()
        coordinator.state.rewind(coordinator.snapshot)
    # A lost node took its environments with it: there is nothing whole to save.
    saved = code not in (ExitCode.STORAGE, ExitCode.CLUSTER) and _save_end(plan, coordinator, display)
    if code == ExitCode.DONE and not saved:
        code, reason = ExitCode.STORAGE, "the last checkpoint could not be written"
        error = StorageError(f"{plan.directory.checkpoints}: {reason}; free some space and use --resume")
    limited = _limit(plan, coordinator)
    _summarize(plan, coordinator, policy, reason, code, limited)
    display.close()
    if error is not None:
        raise error
    for line in _closing_lines(plan, coordinator, code, limited):
        display.note(line)
    return code


def _warm_up(coordinator: Coordinator) -> None:
    """Once per run, before its first iteration."""
    curiosity, cluster = coordinator.state.curiosity, coordinator.cluster
    if curiosity is not None and curiosity.needs_warm_up:
        coordinator.recorder.show("warm-up")
        coordinator.pool.run(WarmUp(index) for index in cluster.slices)
        curiosity.warmed_up(cluster)
        coordinator.snapshot = coordinator.state.snapshot()


def _closing_lines(plan: Plan, coordinator: Coordinator, code: ExitCode, limited: str | None) -> list[str]:
    """The result, the run directory and the next command."""
    counters, returns = coordinator.state.counters, coordinator.state.episodes.recent_returns
    root = shlex.quote(str(plan.directory.root))
    how = {ExitCode.DONE: "done", ExitCode.INTERRUPTED: "interrupted", ExitCode.PREEMPTED: "preempted"}[code]
    lines = [f"{how}: {counters.env_steps:,} steps in {_time(counters.wall_time)}"]
    if returns:
        mean, episodes = plain_sum(returns) / len(returns), count(len(returns), "episode")
        lines.append(f"training return, last {episodes}: {mean:.2f}")
    lines.append(f"run directory: {plan.directory.root}")
    if plan.directory.checkpoints.parent != plan.directory.root:
        lines.append(f"checkpoints: {plan.directory.checkpoints}")
    if limited is not None:
        lines.append(f"limited by {limited}")
    following = f"evaluate.py {root}" if code == ExitCode.DONE else f"{SCRIPT[plan.kind]} --resume {root}"
    return [*lines, f"next: {as_typed(following)}"]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def final_name(plan: Plan) -> str:
    return f"{plan.settings.training.algorithm}_{plan.kind}_final.safetensors"


def _save_end(plan: Plan, coordinator: Coordinator, display: Display) -> bool:
    try:
        if coordinator.recorder.save(coordinator.snapshot):
            coordinator.recorder.save_final(coordinator.snapshot, final_name(plan))
            return True
    except (OSError, StorageError) as problem:
        display.warn(str(problem))
    return False


def _limit(plan: Plan, coordinator: Coordinator) -> str | None:
    recorder = coordinator.recorder
    if not isinstance(recorder, Recorder):
        return None
    return limit(
        recorder.tally,
        plan.settings,
        num_slices=len(coordinator.cluster.slices),
        workers=0 if plan.inline else coordinator.pool.num_workers,
        cores=plan_placement(plan.machine, num_workers=None, pinning="none").num_workers,
        checkpoint_share=recorder.checkpoint_share,
    )


def _summarize(
    plan: Plan, coordinator: Coordinator, policy: Policy, reason: str, code: ExitCode, limited: str | None
) -> None:
    state, recorder = coordinator.state, coordinator.recorder
    counters, returns = state.counters, state.episodes.recent_returns
    recorder.meter.sample(time.monotonic(), coordinator.pool.pids, is_last=True)
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
        "state_sha256": coordinator.snapshot.sha256(),
        "final_return_mean": plain_sum(returns) / len(returns) if returns else None,
        "best_return": coordinator.snapshot.counters["best_return"],
        "num_workers": coordinator.pool.num_workers,
        "num_threads": plan.settings.hardware.num_threads if plan.kind == "sequential" else 1,
        "world_size": coordinator.cluster.node.size,
        "stop_reason": reason,
        "exit_code": int(code),
        "bit_exact": counters.bit_exact
        and coordinator.pool.exact
        and plan.settings.training.schedule_by != "time"
        and plan.settings.cluster.reduction == "tree",
        "worker_restarts": coordinator.earlier_restarts
        + max(coordinator.pool.restarts, sum(report.restarts for report in coordinator.reports)),
        "peak_rss_mb": recorder.meter.peak_rss_mb,
        "checkpoint_seconds": recorder.checkpoint_seconds,
        "startup_seconds": recorder.startup_seconds,
        "limited_by": limited,
        "schedule_changes": plan.directory.schedule_changes(),
    }
    with contextlib.suppress(OSError):
        plan.directory.summarize(summary)
