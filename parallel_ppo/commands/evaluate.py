"""`evaluate.py`: how good is a policy, on the levels it was trained on and on others."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from parallel_ppo.arguments import Parser, guarded, number_from, number_or_auto, positive
from parallel_ppo.commands.policy_flags import add_policy_flags, output_file, policy_from
from parallel_ppo.evaluation import filming
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy, chosen_levels
from parallel_ppo.evaluation.progress import progress
from parallel_ppo.evaluation.report import gap_report, part_report, table
from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.machine.placement import plan_placement, set_thread_variables
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.printable import printable
from parallel_ppo.settings import env_names
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.training.live_evaluation import evaluate as ask
from parallel_ppo.version import VERSION
from parallel_ppo.workers.fork_server import ForkServer
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.playing import SLOTS, Played, num_slices
from parallel_ppo.workers.process_pool import ProcessPool

TABLE_WIDTH = 100
MAX_EPISODES = 10_000
PATIENCE = 3600.0  # seconds for one slice; environments without an end are cut by --max-steps


def build_parser() -> Parser:
    parser = Parser(
        description="Play episodes with a trained policy and report returns, lengths and successes. The result depends on\n"
        "the policy, the environment, --seed and --deterministic; not on --num-workers.",
        examples=(
            "evaluate.py runs/parallel-1 --num-episodes 100",
            "evaluate.py runs/parallel-1/checkpoints/best --deterministic --render",
            "evaluate.py runs/few-levels --levels train,test      # a run with --num-levels",
        ),
    )
    add_policy_flags(parser)
    add = parser.add_argument
    add("--num-episodes", type=number_from(1, MAX_EPISODES), default=100, metavar="N", help="for each of --levels (default: %(default)s)")  # fmt: skip
    add("--levels", default="train", metavar="PARTS", help="train: the levels of training; test: all others; train,test: both, and the gap (default: %(default)s)")  # fmt: skip
    add("--max-steps", type=positive, default=100_000, metavar="N", help="cut longer episodes and count them as unfinished (default: %(default)s)")  # fmt: skip
    add("--num-workers", type=number_or_auto, default="auto", metavar="N", help="processes, or auto (default: %(default)s)")  # fmt: skip
    add("--render", action="store_true", help="also film the first four episodes, as MP4 and GIF beside the JSON")  # fmt: skip
    add("--output", type=Path, metavar="FILE", help="where to write the JSON (default: evaluation.json in the run directory, or beside the weights)")  # fmt: skip
    return parser


def evaluate(argv: Sequence[str] | None = None) -> int:
    return guarded(_evaluate, argv)


def _evaluate(argv: Sequence[str] | None) -> int:
    set_thread_variables()
    arguments = build_parser().parse_args(argv)
    policy = policy_from(arguments, num_episodes=arguments.num_episodes, max_steps=arguments.max_steps)
    level_sets = chosen_levels(arguments.levels, policy.settings.env)
    output = output_file(arguments.output, policy.weights.path, "evaluation.json", (".json",))
    if arguments.render:
        camera = filming.check_camera(policy, level_sets[0])
    episodes = play_on_workers(policy, level_sets, arguments.num_workers, arguments.quiet)
    report = make_report(policy, arguments, episodes)
    write_atomically(output, (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    if not arguments.quiet:
        console = Console(highlight=False)
        console.width = max(console.width, TABLE_WIDTH)
        console.print(Text(f"{printable(report['env_id'])}  step {report['env_steps']:,}  {report['num_episodes']} episodes"
                      f"{' (each)' if len(level_sets) > 1 else ''}  seed {report['seed']}{'  deterministic' if report['deterministic'] else ''}"))  # fmt: skip
        console.print(table(report))
        print(f"95 % intervals in brackets; written to {output}")
    if arguments.render:
        filming.record(camera, output.with_suffix(""), quiet=arguments.quiet)
    return ExitCode.DONE


def play_on_workers(
    policy: LoadedPolicy, level_sets: list[str], workers: int | str, quiet: bool
) -> dict[str, list[Played]]:
    """A pool whose slab is as small as possible, and which is asked for nothing but evaluation."""
    settings = policy.settings.changed("env", num_envs=SLOTS, slice_envs=SLOTS)
    settings = settings.changed("training", n_steps=1, batch_size=SLOTS, lane_samples=None)
    settings = settings.changed("parallel", max_restarts=2, hang_timeout=PATIENCE)
    total = len(level_sets) * settings.evaluation.num_episodes
    tasks = len(level_sets) * num_slices(settings.evaluation.num_episodes)
    try:
        placement = plan_placement(
            read_machine(),
            num_workers=None if isinstance(workers, str) else min(workers, tasks),
            pinning="none",
            max_useful=tasks,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    with contextlib.ExitStack() as stack:
        fork_server = ForkServer(settings, policy.spec)
        stack.callback(fork_server.close)
        memory = Memory(settings, policy.spec, len(policy.filled.parameters))
        memory.parameters[:] = policy.filled.parameters
        memory.observation_mean[...] = policy.filled.observation_mean
        memory.observation_scale[...] = policy.filled.observation_scale
        memory.evaluation.fill(np.nan)
        stack.enter_context(
            progress("evaluating", total, lambda: int(np.isfinite(memory.evaluation[:, :, 0]).sum()), quiet)
        )
        pool = ProcessPool(settings, memory, fork_server, list(placement.worker_cpus), range(0), 0, _warn)
        stack.callback(pool.close)
        return ask(pool, memory, settings, level_sets=level_sets, iteration=0)


def _warn(line: str) -> None:
    print(f"warning: {printable(line)}", file=sys.stderr)


def make_report(
    policy: LoadedPolicy, arguments: argparse.Namespace, episodes: dict[str, list[Played]]
) -> dict[str, Any]:
    """Nothing in it depends on the clock or the number of workers."""
    env = policy.settings.env
    both = "train" in episodes and "test" in episodes
    return {
        "version": VERSION,
        "checkpoint": str(arguments.policy or arguments.checkpoint),
        "policy_sha256": policy.filled.policy_sha256,
        "env_steps": policy.weights.env_steps,
        "env_id": env.id,
        "trained_on": policy.weights.settings.env.id,
        "distribution_mode": env.distribution_mode if env_names.procgen_game(env.id) else None,
        "policy": policy.settings.training.policy,
        "kernels": policy.settings.training.kernels,
        "seed": arguments.seed,
        "deterministic": arguments.deterministic,
        "num_episodes": arguments.num_episodes,
        "max_steps": arguments.max_steps,
        "levels": {part: part_report(played, env, part) for part, played in episodes.items()},
        "gap": gap_report(episodes["train"], episodes["test"], env) if both else None,
    }
