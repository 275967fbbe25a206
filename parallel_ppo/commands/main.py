"""`parallel-ppo`: all commands; the scripts at the root are the same commands."""

import importlib
import sys
from collections.abc import Sequence

from parallel_ppo.arguments import guarded
from parallel_ppo.child import restart_with_fixed_hash_seed
from parallel_ppo.commands.training_flags import CLUSTER_FLAGS, PARALLEL_FLAGS
from parallel_ppo.printable import one_line
from parallel_ppo.version import VERSION

# name -> where it is, and what it does
COMMANDS = {
    "train": ("commands.train:train_parallel",
    "train on all cores; --sequential: in one process; --nnodes N: on several machines"),
    "evaluate": ("commands.evaluate:evaluate", "returns with confidence intervals, on its levels and on others"),
    "play": ("commands.play:play_episodes", "film a policy"),
    "plot": ("reports.plot_command:main", "curves of one or several runs"),
    "compare": ("reports.compare_command:main", "compare runs: speed, returns, equality"),
    "suite": ("commands.suite:main", "several games, settings and seeds; one page of results"),
    "tune": ("commands.tune:main", "find the fastest workers and pinning for this machine"),
    "export": ("sharing.command:export", "write a policy as ONNX"),
    "push": ("sharing.command:push", "share a policy on the Hugging Face hub"),
    "verify": ("sharing.command:verify", "train a shared policy again and compare every iteration"),
    "doctor": ("commands.doctor:main", "check each part of the installation"),
}  # fmt: skip
TRAINERS = {"--sequential": "train_sequential"} | dict.fromkeys(
    [*(CLUSTER_FLAGS.keys() - PARALLEL_FLAGS.keys()), "--node-rank", "--continue"], "train_cluster"
)


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        restart_with_fixed_hash_seed()
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "--version"):
        print(VERSION if name == "--version" else _help())
        return 0
    if name not in COMMANDS:
        print(one_line(f"error: {name}: no such command; known are {', '.join(COMMANDS)}"), file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name][0].partition(":")
    if name == "train":
        chosen = next(
            (TRAINERS[word] for word in (w.partition("=")[0] for w in rest) if word in TRAINERS), function
        )
        function, rest = chosen, [word for word in rest if word != "--sequential"]
    sys.argv = [f"parallel-ppo {name}", *rest]
    code = guarded(getattr(importlib.import_module(f"parallel_ppo.{module}"), function), rest)
    if name == "train":
        importlib.import_module("parallel_ppo.commands.train").leave(code)
    return int(code)


def _help() -> str:
    lines = [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: parallel-ppo COMMAND ... (each has --help)", "", *lines])
