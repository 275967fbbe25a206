#!/usr/bin/env python3
"""Submit a training on many nodes to PBS (Professional or OpenPBS): one coordinator a node, started by
pbsdsh.

PBS sends TERM before it ends a job: it is forwarded to node 0, all nodes save and end with 75. Submit the
same script again, and it continues the run.
"""

import argparse
import re

from job import SCRIPT, batch_parser, fill, one_line, quoted, run, submit

EXAMPLE = (
    "tools/launch/pbs.py --nodes 4 --cpus 32 --time 24:00:00 --output-dir runs/big -- --env coinrun"
    " --num-envs 512 --batch-size 16384"
)

TEMPLATE = """#!/bin/bash
#PBS -N {name}
#PBS -l select={nodes}:ncpus={cpus}:mpiprocs=1
#PBS -l place=scatter
#PBS -l walltime={time}
#PBS -r y
#PBS -j oe
{extra}
set -u
cd {project} || exit 2
mapfile -t hosts < <(sort -u "$PBS_NODEFILE")
address=$(getent ahostsv4 "$(hostname)" | awk '!/^127/ {{print $1; exit}}')

# This host is node 0; the others follow in the order of the node file.
ordered=("$(hostname -s)")
for host in "${{hosts[@]}}"; do
  [ "${{host%%.*}}" = "$(hostname -s)" ] || ordered+=("${{host%%.*}}")
done
if [ "${{#ordered[@]}}" -ne {nodes} ]; then
  echo "PBS gave ${{#ordered[@]}} hosts, {nodes} are needed"
  exit 2
fi

# pbsdsh runs this on every host: each finds its own place in the list.
export ordered_hosts="${{ordered[*]}}" master_address="$address"
# shellcheck disable=SC2016  # to be expanded on each host
node='rank=0; for host in $1; do [ "$host" = "$(hostname -s)" ] && break; rank=$((rank + 1)); done
cd "$2" || exit 2; shift 2; exec "$@" --node-rank "$rank"'
pbsdsh -- bash -c "$node" _ "$ordered_hosts" {project} \\
  {training} --num-workers {workers} --master-addr "$master_address" &
step=$!

# The coordinators save and end with 75; stopping node 0 stops all of them together.
coordinator={pattern}
trap 'pkill -TERM -u "$(id -u)" -f -- "$coordinator"' TERM USR1
{wait}exit "$code"
"""


def coordinator(arguments: argparse.Namespace) -> str:
    """A pattern for the command line of the coordinator itself, not of the shells around it; `.` stands
    for what a shell would read.
    """
    words = f"{arguments.python} {SCRIPT} @ --output-dir {arguments.output_dir} --continue"
    return "^" + re.sub(r"[^\w/@-]", ".", words).replace("@", ".*")


def main() -> int:
    options = batch_parser(str(__doc__), EXAMPLE)
    options.add_argument(
        "--pbs",
        type=one_line,
        action="append",
        default=[],
        metavar="OPTION",
        help="further #PBS lines, such as '-q long'",
    )
    arguments = options.parse_args()
    lines = [f"#PBS {line}" for line in arguments.pbs]
    script = fill(TEMPLATE, arguments, lines, pattern=quoted([coordinator(arguments)]))
    return submit(script, ["qsub"], arguments.dry_run)


if __name__ == "__main__":
    run(main)
