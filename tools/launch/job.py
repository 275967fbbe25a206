"""What the launchers share: how a training command is written into a shell script."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from parallel_ppo.arguments import Parser, number_from, run  # noqa: E402, F401  (`run` for the launchers)
from parallel_ppo.exits import InputError  # noqa: E402

SCRIPT = "train_ppo_distributed.py"
DEFAULT_PORT = 29500
WAIT = """\
code=127
while true; do  # a trap ends `wait` early; 127 says that all was told
  wait "$step"
  status=$?
  [ "$status" -eq 127 ] && break
  code=$status
  [ "$code" -le 128 ] && break
done
"""


def parser(description: str, example: str) -> Parser:
    result = Parser(description=description, examples=[example], quiet=False)
    add = result.add_argument
    add("--output-dir", required=True, metavar="DIR", help="of the run, seen by all nodes")
    add(
        "--project", default=str(ROOT), metavar="DIR", help="this project on the nodes (default: %(default)s)"
    )
    add("--python", default="venv/bin/python", help="within the project (default: %(default)s)")
    add("--port", type=number_from(1, 65535), default=DEFAULT_PORT, help="of node 0 (default: %(default)s)")
    add("--dry-run", action="store_true", help="print what would be done, and do nothing")
    add("rest", nargs="*", metavar="ARGUMENT", help=f"after --: for {SCRIPT}")
    return result


def batch_parser(description: str, example: str) -> Parser:
    """For schedulers: also what a job needs."""
    options = parser(description, example)
    options.add_argument("--nodes", type=number_from(1, 4096), required=True)
    options.add_argument("--cpus", type=number_from(1, 1024), required=True, help="of each node")
    options.add_argument(
        "--time", type=one_line, default="24:00:00", help="limit of one job (default: %(default)s)"
    )
    options.add_argument(
        "--name", type=one_line, default="parallel_ppo", help="of the job (default: %(default)s)"
    )
    return options


def fill(template: str, arguments: argparse.Namespace, lines: list[str], **more: str) -> str:
    """A scheduler's script. `lines` are further directives; `{wait}` waits for the process `$step`,
    whatever is trapped meanwhile.
    """
    return template.format(
        name=quoted([arguments.name]), nodes=arguments.nodes, cpus=arguments.cpus, time=arguments.time,
        workers=arguments.cpus,
        extra="".join(f"{line}\n" for line in lines), project=quoted([arguments.project]),
        training=training(arguments, arguments.nodes), wait=WAIT, **more,
    )  # fmt: skip


def one_line(text: str) -> str:
    """A scheduler's directive ends with its line: what follows would be a command of the script."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r}: expected one line without control characters")
    return text


def quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def training(arguments: argparse.Namespace, nodes: int) -> str:
    """The part of the command that is the same on every node; --continue makes first starts and restarts
    alike.
    """
    fixed = [arguments.python, SCRIPT, "--nnodes", str(nodes), "--master-port", str(arguments.port)]
    return quoted([*fixed, "--output-dir", arguments.output_dir, "--continue", *arguments.rest])


def submit(script: str, command: list[str], dry_run: bool) -> int:
    """Hands the script to the scheduler on its standard input."""
    if dry_run:
        print(script, end="")
        return 0
    try:
        return subprocess.run(command, input=script, text=True).returncode
    except FileNotFoundError:
        raise InputError(
            f"there is no {command[0]} on this machine; run this where jobs are submitted, or use --dry-run"
        ) from None
