"""The flags that `evaluate.py` and `play.py` share."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallel_ppo.arguments import Parser, named_run, number_from, writable_file
from parallel_ppo.evaluation.hub import HUB
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy, load_policy
from parallel_ppo.evaluation.policy_files import run_root
from parallel_ppo.exits import InputError
from parallel_ppo.settings.schema import MAX_EPISODE_STEPS

EPISODES = number_from(1, 10_000)
EPISODE_STEPS = number_from(1, MAX_EPISODE_STEPS)


def add_policy_flags(parser: Parser) -> None:
    where = (
        "a run directory (its latest checkpoint), its name in runs/, one checkpoint of it, weights"
        " (.safetensors), or hub:user/name"
    )
    add = parser.add_argument
    add("policy", nargs="?", type=named_run, metavar="RUN_OR_FILE", help=where)
    add("--checkpoint", type=named_run, metavar="RUN_OR_FILE", help="the same as a flag")
    add("--env", metavar="ID", help="another environment than the one it was trained in")
    add("--seed", type=number_from(0, 2**63 - 1), default=0, metavar="N", help="of the episodes (default: 0)")
    add("--deterministic", action="store_true", help="take the most likely action instead of drawing one")
    parser.add_trust_flag()


def policy_from(arguments: argparse.Namespace, **evaluation: Any) -> LoadedPolicy:
    if (arguments.policy is None) == (arguments.checkpoint is None):
        given = "no policy is given" if arguments.policy is None else "the policy is given twice"
        raise InputError(f"{given}; expected one run directory or weights file, such as runs/parallel-1")
    return load_policy(
        arguments.policy or arguments.checkpoint,
        env_id=arguments.env,
        seed=arguments.seed,
        deterministic=arguments.deterministic,
        trust=arguments.trust_checkpoint,
        **evaluation,
    )


def output_file(
    arguments: argparse.Namespace, policy: LoadedPolicy, name: str, suffixes: Sequence[str]
) -> Path:
    """Returns the path of `--output`, by default a file in the run directory."""
    is_shared = str(arguments.policy or arguments.checkpoint).startswith(HUB)
    folder = Path() if is_shared else run_root(policy.weights.path)
    return writable_file("--output", arguments.output or folder / name, suffixes)
