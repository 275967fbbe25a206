"""Plays episodes of a loaded policy with worker processes, and reports them."""

import contextlib
import sys

import numpy as np

from parallel_ppo.envs.versions import one_procgen, versions_of
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy
from parallel_ppo.evaluation.progress import progress
from parallel_ppo.evaluation.report import Report, first_frames_report, gap_report, part_report
from parallel_ppo.features.observations import ObservationState
from parallel_ppo.machine.placement import plan_placement
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.printable import printable
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.training.live_evaluation import evaluate as ask
from parallel_ppo.version import VERSION
from parallel_ppo.workers.fork_server import ForkServer
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.playing import SLOTS, Played, num_slices, unseen
from parallel_ppo.workers.process_pool import ProcessPool

PATIENCE = 3600.0  # seconds for one slice; environments without an end are cut by --max-steps


def play_on_workers(
    policy: LoadedPolicy, level_sets: list[str], workers: int | str, quiet: bool
) -> dict[str, list[Played]]:
    """On a pool with the smallest possible rollout, which only evaluates."""
    settings = policy.settings.changed("env", num_envs=SLOTS, slice_envs=SLOTS)
    settings = settings.changed("training", n_steps=1, batch_size=SLOTS, lane_samples=None)
    settings = settings.changed("recurrence", sequence_length=None)
    settings = settings.changed("parallel", max_restarts=2, hang_timeout=PATIENCE)
    total = len(level_sets) * settings.evaluation.num_episodes
    tasks = len(level_sets) * num_slices(settings.evaluation.num_episodes)
    placement = plan_placement(
        read_machine(),
        num_workers=None if isinstance(workers, str) else min(workers, tasks),
        pinning="none",
        max_useful=tasks,
    )
    with contextlib.ExitStack() as stack:
        fork_server = ForkServer(settings, policy.spec)
        stack.callback(fork_server.close)
        memory = Memory(settings, policy.spec, len(policy.filled.parameters))
        memory.parameters[: len(policy.filled.parameters)] = policy.filled.parameters
        published = memory.of(ObservationState)
        published.observation_mean[...] = policy.filled.observation_mean
        published.observation_scale[...] = policy.filled.observation_scale
        memory.evaluation.fill(np.nan)
        stack.enter_context(
            progress(
                lambda: "evaluating", total, lambda: int(np.isfinite(memory.evaluation[:, :, 0]).sum()), quiet
            )
        )
        pool = ProcessPool(settings, memory, fork_server, list(placement.worker_cpus), range(0), 0, _warn)
        stack.callback(pool.close)
        return ask(pool, memory, settings, level_sets=level_sets, iteration=0)


def _warn(line: str) -> None:
    print(f"warning: {printable(line)}", file=sys.stderr)


def make_report(
    policy: LoadedPolicy, checkpoint: str, episodes: dict[str, list[Played]], *, include_seen: bool = False
) -> Report:
    """Nothing in it depends on the clock or the number of workers. `include_seen`: count test levels whose first frame
    is that of a training level.
    """
    env, chosen = policy.settings.env, policy.settings.evaluation
    counted = episodes if include_seen else {part: unseen(played) for part, played in episodes.items()}
    both = "train" in episodes and "test" in episodes
    return {
        "version": VERSION,
        "checkpoint": checkpoint,
        "policy_sha256": policy.filled.policy_sha256,
        "env_steps": policy.weights.env_steps,
        "env_id": env.id,
        "trained_on": policy.weights.settings.env.id,
        "libraries": one_procgen(versions_of(family_of(env.id).LIBRARIES)),
        "distribution_mode": env.distribution_mode if family_of(env.id).HAS_LEVELS else None,
        "policy": policy.settings.training.policy,
        "kernels": policy.settings.training.kernels,
        "seed": policy.settings.training.seed,
        "deterministic": chosen.deterministic,
        "num_episodes": chosen.num_episodes,
        "max_steps": chosen.max_steps,
        "levels": {part: part_report(played, env, part) for part, played in counted.items()},
        "first_frames": first_frames_report(episodes["test"], included=include_seen)
        if "test" in episodes
        else None,
        "gap": gap_report(counted["train"], counted["test"], env) if both else None,
    }
