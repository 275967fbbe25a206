"""What the launchers share: how a training command is written into a shell script."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
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


def parser(description: str, example: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=description,
        epilog=f"example: {example}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--output-dir", required=True, metavar="DIR", help="of the run, seen by all nodes")
    result.add_argument("--project", default=str(ROOT), metavar="DIR", help="this project on the nodes (default: %(default)s)")  # fmt: skip
    result.add_argument("--python", default="venv/bin/python", help="within the project (default: %(default)s)")  # fmt: skip
    result.add_argument("--port", type=number(1, 65535), default=DEFAULT_PORT, help="of node 0 (default: %(default)s)")  # fmt: skip
    result.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    result.add_argument("rest", nargs="*", metavar="ARGUMENT", help=f"after --: for {SCRIPT}")
    return result


def batch_parser(description: str, example: str) -> argparse.ArgumentParser:
    """For schedulers: also what a job needs."""
    options = parser(description, example)
    options.add_argument("--nodes", type=number(1, 4096), required=True)
    options.add_argument("--cpus", type=number(1, 1024), required=True, help="of each node")
    options.add_argument(
        "--time", type=one_line, default="24:00:00", help="limit of one job (default: %(default)s)"
    )
    options.add_argument(
        "--name", type=one_line, default="parallel_ppo", help="of the job (default: %(default)s)"
    )
    return options


def fill(template: str, arguments: argparse.Namespace, lines: list[str], **more: str) -> str:
    """A scheduler's script. `lines` are further directives; `{wait}` waits for the process `$step`, whatever is trapped meanwhile."""
    return template.format(
        name=quoted([arguments.name]), nodes=arguments.nodes, cpus=arguments.cpus, time=arguments.time, workers=arguments.cpus,
        extra="".join(f"{line}\n" for line in lines), project=quoted([arguments.project]),
        training=training(arguments, arguments.nodes), wait=WAIT, **more,
    )  # fmt: skip


def number(least: int, most: int):  # type: ignore[no-untyped-def]
    def convert(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return convert


def one_line(text: str) -> str:
    """A scheduler's directive ends with its line: what follows would be a command of the script."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} holds a line end or another control character")
    return text


def quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def training(arguments: argparse.Namespace, nodes: int) -> str:
    """The part of the command that is the same on every node; --continue makes first starts and restarts alike."""
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
        print(
            f"error: there is no {command[0]} on this machine; run this where jobs are submitted, or use --dry-run",
            file=sys.stderr,
        )
        return 2
