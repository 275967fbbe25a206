#!/usr/bin/env python3
"""Start a training on the hosts of a file (one a line, node 0 first) by ssh; all nodes end together.

Ctrl-C or TERM here is sent to the coordinators: they save and end. The same command again continues.
"""

import re
import subprocess
from pathlib import Path

from job import InputError, parser, quoted, run, training

EXAMPLE = (
    "tools/launch/ssh.py --hosts hosts.txt --output-dir runs/big -- --env coinrun --num-envs 128 "
    "--batch-size 4096"
)

TEMPLATE = """#!/bin/bash
set -u
hosts=({hosts})
pids=()
command={command}

# -tt ties the remote coordinator to this connection: where it breaks, it gets a HUP, saves and ends.
for rank in "${{!hosts[@]}}"; do
  # shellcheck disable=SC2029  # the command is meant to be expanded here
  ssh -tt -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "${{hosts[$rank]}}" \\
    "$command --node-rank $rank" < /dev/null &
  pids+=("$!")
done
trap 'kill -HUP "${{pids[@]}}" 2>/dev/null' INT TERM USR1

code=0
for pid in "${{pids[@]}}"; do
  told=127
  while true; do  # a trap ends `wait` early; 127 says that all was told
    wait "$pid"
    status=$?
    [ "$status" -eq 127 ] && break
    told=$status
    [ "$told" -le 128 ] && break
  done
  [ "$code" -eq 0 ] && code=$told
done
exit "$code"
"""


def read_hosts(path: Path) -> list[str]:
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--hosts {path}: cannot be read ({error}); expected a file with one host a line"
        ) from None
    hosts = [line for line in lines if line]
    wrong = [host for host in hosts if not re.fullmatch(r"[\w.@:-]+", host) or host.startswith("-")]
    if wrong:
        raise InputError(f"--hosts {path}: {wrong[0]!r} is not a host; expected name, address or user@name")
    if not hosts:
        raise InputError(f"--hosts {path}: names no host; expected one a line, node 0 first")
    return hosts


def main() -> int:
    options = parser(str(__doc__), EXAMPLE)
    options.add_argument("--hosts", type=Path, required=True, metavar="FILE",
        help="one host a line, node 0 first")  # fmt: skip
    options.add_argument("--master-addr",
        help="of node 0, on the private network (default: its name in the file)")  # fmt: skip
    options.add_argument("--num-workers", default="auto", help="of each node (default: %(default)s)")
    arguments = options.parse_args()
    hosts = read_hosts(arguments.hosts)
    master = arguments.master_addr or hosts[0].rpartition("@")[2]
    remote = f"cd {quoted([arguments.project])} && exec {training(arguments, len(hosts))} " + quoted(
        ["--num-workers", arguments.num_workers, "--master-addr", master]
    )
    script = TEMPLATE.format(hosts=quoted(hosts), command=quoted([remote]))
    if arguments.dry_run:
        print(script, end="")
        return 0
    return subprocess.run(["bash", "-c", script]).returncode


if __name__ == "__main__":
    run(main)
