"""The end of a session, after any outcome: a checkpoint, a summary and a few lines."""

import contextlib
import shlex
import time
from typing import Any

from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.arguments import as_typed
from parallel_ppo.exits import ExitCode, RunError, StorageError, details_of
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.policies.parameters import sha256
from parallel_ppo.printable import count
from parallel_ppo.records.display import duration_text
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.training.bottleneck import limit
from parallel_ppo.training.planning import Plan
from parallel_ppo.training.recorder import Recorder
from parallel_ppo.training.run import Run

SCRIPT = {
    "parallel": "train_parallel_timed.py",
    "sequential": "train_timed.py",
    "cluster": "train_ppo_distributed.py",
}


def finish(run: Run, code: ExitCode, reason: str, error: RunError | None) -> ExitCode:
    """Saves the snapshot, writes the summary, and prints the result or raises the error."""
    if code != ExitCode.DONE:
        run.pool.close()
        run.state.rewind(run.snapshot)
    # A lost node took its environments with it: there is nothing whole to save.
    saved = code not in (ExitCode.STORAGE, ExitCode.CLUSTER) and save_end(run)
    if code == ExitCode.DONE and not saved:
        code, reason = ExitCode.STORAGE, "the last checkpoint could not be written"
        error = StorageError(f"{run.plan.directory.checkpoints}: {reason}; free some space and use --resume")
    limited = _limit(run)
    _summarize(run, reason, code, limited)
    run.display.close()
    if error is not None:
        if details := details_of(error):
            with contextlib.suppress(OSError):
                write_atomically(run.plan.directory.root / "traceback.txt", details.encode())
        raise error
    for line in _closing_lines(run, code, limited):
        run.display.note(line)
    return code


def _closing_lines(run: Run, code: ExitCode, limited: str | None) -> list[str]:
    """The result, the run directory and the next command."""
    counters, returns = run.state.counters, run.state.episodes.recent_returns
    root = shlex.quote(str(run.plan.directory.root))
    how = {ExitCode.DONE: "done", ExitCode.INTERRUPTED: "interrupted", ExitCode.PREEMPTED: "preempted"}[code]
    lines = [f"{how}: {counters.env_steps:,} steps in {_time(counters.wall_time)}"]
    if returns:
        mean, episodes = plain_sum(returns) / len(returns), count(len(returns), "episode")
        lines.append(f"training return, last {episodes}: {mean:.2f}")
    lines.append(f"run directory: {run.plan.directory.root}")
    if run.plan.directory.checkpoints.parent != run.plan.directory.root:
        lines.append(f"checkpoints: {run.plan.directory.checkpoints}")
    if limited is not None:
        lines.append(f"limited by {limited}")
    following = f"evaluate.py {root}" if code == ExitCode.DONE else f"{SCRIPT[run.plan.kind]} --resume {root}"
    return [*lines, f"next: {as_typed(following)}"]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def final_name(plan: Plan) -> str:
    return f"{plan.settings.training.algorithm}_{plan.kind}_final.safetensors"


def save_end(run: Run) -> bool:
    try:
        if run.recorder.save(run.snapshot):
            run.recorder.save_final(run.snapshot, final_name(run.plan))
            return True
    except (OSError, StorageError) as problem:
        run.display.warn(str(problem))
    return False


def _limit(run: Run) -> str | None:
    recorder = run.recorder
    if not isinstance(recorder, Recorder):
        return None
    return limit(
        recorder.tally,
        run.settings,
        num_slices=len(run.cluster.slices),
        workers=0 if run.plan.inline else run.pool.num_workers,
        cores=plan_placement(run.plan.machine, num_workers=None, pinning="none").num_workers,
        checkpoint_share=recorder.checkpoint_share,
    )


def _summarize(run: Run, reason: str, code: ExitCode, limited: str | None) -> None:
    state, recorder = run.state, run.recorder
    counters, returns = state.counters, state.episodes.recent_returns
    recorder.meter.sample(time.monotonic(), run.pool.pids, is_last=True)
    summary: dict[str, Any] = {
        "env_id": run.settings.env.id,
        "policy": run.settings.training.policy,
        "kind": run.plan.kind,
        "env_steps": counters.env_steps,
        "iterations": counters.iteration,
        "episodes": counters.episodes,
        "wall_time": counters.wall_time,
        "fps_mean": counters.env_steps / counters.wall_time if counters.wall_time else None,
        "policy_sha256": sha256(run.policy, state.parameters),
        "state_sha256": run.snapshot.sha256(),
        "final_return_mean": plain_sum(returns) / len(returns) if returns else None,
        "best_return": run.snapshot.counters["best_return"],
        "num_workers": run.pool.num_workers,
        "num_threads": run.settings.hardware.num_threads if run.plan.kind == "sequential" else 1,
        "world_size": run.cluster.node.size,
        "stop_reason": reason,
        "exit_code": int(code),
        "bit_exact": counters.bit_exact
        and run.pool.exact
        and run.settings.training.schedule_by != "time"
        and run.settings.cluster.reduction == "tree",
        "portable": not run.plan.tied_to_machine,
        "tied_to_machine": list(run.plan.tied_to_machine),
        "worker_restarts": run.earlier_restarts
        + max(run.pool.restarts, sum(report.restarts for report in run.reports)),
        "peak_rss_mb": recorder.meter.peak_rss_mb,
        "checkpoint_seconds": recorder.checkpoint_seconds,
        "startup_seconds": recorder.startup_seconds,
        "limited_by": limited,
        "schedule_changes": run.plan.directory.schedule_changes(),
    }
    with contextlib.suppress(OSError):
        run.plan.directory.summarize(summary)
