#!/usr/bin/env python3
"""Start a training by ssh on the hosts of a file (one per line, node 0 first); all nodes end together.

Ctrl-C or TERM here reaches the coordinators: they save and end. The same command continues the run, with
any number of hosts.
"""

import os
import re
from pathlib import Path

from job import SCRIPT, WAIT, Damaged, InputError, number_from, parser, quoted, read_regular, run

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
  TERM=dumb ssh -tt -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "${{hosts[$rank]}}" \\
    "$command --node-rank $rank" < /dev/null &
  pids+=("$!")
done
trap 'stopped=75; kill -HUP "${{pids[@]}}" 2>/dev/null' INT TERM USR1

first_failure=0
for step in "${{pids[@]}}"; do
{wait}  [ "$first_failure" -eq 0 ] && first_failure=$code
done
exit "${{stopped:-$first_failure}}"
"""


def read_hosts(path: Path) -> list[str]:
    try:
        text = read_regular(path, 1 << 20).decode()
    except (Damaged, UnicodeDecodeError) as error:
        raise InputError(f"--hosts: {error}; expected a file with one host per line") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = [line for line in lines if line]
    wrong = [host for host in hosts if not re.fullmatch(r"[\w.@:-]+", host) or host.startswith("-")]
    if wrong:
        raise InputError(f"--hosts {path}: {wrong[0]!r:.80} is not a host; expected address or user@name")
    if not hosts:
        raise InputError(f"--hosts {path}: names no host; expected one per line, node 0 first")
    return hosts


def main() -> int:
    options = parser(str(__doc__), EXAMPLE)
    add = options.add_argument
    add("--hosts", type=Path, required=True, metavar="FILE", help="one host per line, node 0 first")
    add("--master-addr", help="address of node 0 on the private network (default: its name in the file)")
    add("--port", type=number_from(1, 65535), default=0, help="port of node 0 (default: one for each start)")
    add("--num-workers", default="auto", help="workers of each node (default: %(default)s)")
    arguments = options.parse_args()
    hosts = read_hosts(arguments.hosts)
    master = arguments.master_addr or hosts[0].rpartition("@")[2]
    port = arguments.port or 10_000 + os.getpid() % 20_000
    training = [arguments.python, SCRIPT, "--output-dir", arguments.output_dir, "--nnodes", str(len(hosts)),
                "--master-addr", master, "--master-port", str(port), "--num-workers", arguments.num_workers,
                "--continue", *arguments.rest]  # fmt: skip
    remote = f"cd {quoted([arguments.project])} && exec {quoted(training)}"
    wait = WAIT.replace("\n", "\n  ").rstrip(" ")
    script = TEMPLATE.format(hosts=quoted(hosts), command=quoted([remote]), wait=f"  {wait}")
    if not arguments.dry_run:
        os.execvp("bash", ["bash", "-c", script])  # signals then reach the script
    print(script, end="")
    return 0


if __name__ == "__main__":
    run(main)
