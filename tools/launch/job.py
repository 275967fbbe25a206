"""Shared by the launchers: how a training command is written into a shell script."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from parallel_ppo.arguments import Parser, number_from, run  # noqa: E402, F401  (`run` for the launchers)
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.storage.files import Damaged, read_regular  # noqa: E402, F401  (for the launchers)

SCRIPT = "train_ppo_distributed.py"
# A trap ends `wait` early, and bash remembers the code of a child that has ended.
WAIT = """\
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
code=$?
"""
SECRET = """\
PARALLEL_PPO_CLUSTER_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export PARALLEL_PPO_CLUSTER_SECRET"""


def parser(description: str, example: str) -> Parser:
    result = Parser(description=description, examples=[example], quiet=False)
    add = result.add_argument
    add("--output-dir", type=one_line, required=True, metavar="DIR", help="run directory, seen by all nodes")
    add("--project", default=str(ROOT), metavar="DIR", help="checkout on the nodes (default: %(default)s)")
    add("--python", default="venv/bin/python", help="interpreter in the project (default: %(default)s)")
    add("--dry-run", action="store_true", help="print the script instead of running it")
    add("rest", nargs="*", metavar="ARGUMENT", help=f"after --: arguments of {SCRIPT}")
    return result


def batch_parser(description: str, example: str, scheduler: str, nodes_metavar: str) -> Parser:
    """For schedulers: also what a job needs."""
    options = parser(description, example)
    add = options.add_argument
    add("--nodes", type=one_line, required=True, metavar=nodes_metavar, help="nodes of the job")
    add("--cpus", type=number_from(1, 1024), required=True, help="CPUs of each node")
    add("--time", type=one_line, default="24:00:00", help="limit of one job (default: %(default)s)")
    add("--name", type=job_name, default="parallel_ppo", help="name of the job (default: %(default)s)")
    add(
        f"--{scheduler}",
        dest="directives",
        type=one_line,
        action="append",
        default=[],
        metavar="OPTION",
        help=f"further line for the scheduler, such as --{scheduler}='--partition=long'",
    )
    return options


def fill(template: str, arguments: argparse.Namespace, directive: str, **more: str) -> str:
    return template.format(
        name=arguments.name, nodes=arguments.nodes, cpus=arguments.cpus, time=arguments.time,
        extra="".join(f"{directive} {line}\n" for line in arguments.directives),
        project=quoted([arguments.project]), output=quoted([arguments.output_dir]),
        training=quoted([arguments.python, SCRIPT]), rest=quoted(["--continue", *arguments.rest]), wait=WAIT,
        secret=SECRET, **more,
    )  # fmt: skip


def one_line(text: str) -> str:
    """A scheduler's directive ends with its line: what follows would be a command of the script."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r}: expected one line without control characters")
    return text


def job_name(text: str) -> str:
    """It is part of the log's file name."""
    if not re.fullmatch(r"[\w.+-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected letters, digits, dots, dashes and underscores")
    return text


def quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def submit(script: str, command: list[str], dry_run: bool) -> int:
    """Gives the script to the scheduler on its standard input."""
    if dry_run:
        print(script, end="")
        return 0
    try:
        return subprocess.run(command, input=script, text=True).returncode
    except FileNotFoundError:
        raise InputError(
            f"there is no {command[0]} on this machine; run this where jobs are submitted, or use --dry-run"
        ) from None
