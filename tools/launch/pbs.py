#!/usr/bin/env python3
"""Submit a training on several nodes to PBS (Professional or OpenPBS): one coordinator per node, started by
pbsdsh.

PBS sends TERM before it ends a job: it is forwarded to the coordinator on the first node, all nodes save
and end with 75. Submit the same script again, with any number of nodes, and it continues the run.
"""

import argparse
import re

from job import SCRIPT, InputError, batch_parser, fill, quoted, run, submit

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
output={output}${{PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}}
job=${{PBS_JOBID%%[!0-9]*}}
port=$((10000 + (job + 7 * ${{PBS_ARRAY_INDEX:-0}}) % 20000))
address=$(getent ahostsv4 "$(hostname)" | awk '!/^127/ {{print $1; exit}}')
# In a file, because the arguments of a process are public.
(umask 077 && mkdir -p "$output" && od -An -N16 -tx1 /dev/urandom > "$output/.cluster-secret") || exit 5

# This host is node 0; the others follow in the order of the node file.
ordered=("$(hostname -s)")
while read -r host; do
  [ "${{host%%.*}}" = "$(hostname -s)" ] || ordered+=("${{host%%.*}}")
done < <(sort -u "$PBS_NODEFILE")

# pbsdsh runs this on every host: each finds its own place in the list.
# shellcheck disable=SC2016  # to be expanded on each host
node='rank=0; for host in $1; do [ "$host" = "$(hostname -s)" ] && break; rank=$((rank + 1)); done
cd "$2" || exit 2; PARALLEL_PPO_CLUSTER_SECRET=$(cat "$3/.cluster-secret") || exit 5
export PARALLEL_PPO_CLUSTER_SECRET; shift 3; exec "$@" --node-rank "$rank"'
pbsdsh -- bash -c "$node" _ "${{ordered[*]}}" {project} "$output" \\
  {training} --output-dir "$output" --num-workers {cpus} --nnodes "${{#ordered[@]}}" \\
  --master-addr "$address" --master-port "$port" {rest} &
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
    words = f"{arguments.python} {SCRIPT} --output-dir {arguments.output_dir}"
    return "^" + re.sub(r"[^\w/-]", ".", words)


def main() -> int:
    options = batch_parser(str(__doc__), EXAMPLE, "pbs", "N")
    arguments = options.parse_args()
    if not re.fullmatch(r"[1-9]\d{0,3}", arguments.nodes):
        raise InputError(f"--nodes {arguments.nodes}: expected a number of nodes")
    script = fill(TEMPLATE, arguments, "#PBS", pattern=quoted([coordinator(arguments)]))
    return submit(script, ["qsub"], arguments.dry_run)


if __name__ == "__main__":
    run(main)
