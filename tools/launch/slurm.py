#!/usr/bin/env python3
"""Submit a training on many nodes to SLURM: one task a node, its CPUs for the workers.

Two minutes before the time limit SLURM sends USR1; it is forwarded to all coordinators, which save and
end with 75, and the job is put back into the queue. A lost node (6) is put back as well. The same script
continues the run.
"""

from job import batch_parser, fill, one_line, run, submit

EXAMPLE = (
    "tools/launch/slurm.py --nodes 4 --cpus 32 --time 24:00:00 --output-dir runs/big -- --env coinrun"
    " --num-envs 512 --batch-size 16384"
)

TEMPLATE = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --time={time}
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log
{extra}
set -u
cd {project} || exit 2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname -I | awk '{{print $1}}')

# One task a node; --kill-on-bad-exit=0, because the nodes end each other in order and each says why.
# shellcheck disable=SC2016  # the rank is known on the node only
srun --kill-on-bad-exit=0 --cpu-bind=cores bash -c 'exec "$@" --node-rank "$SLURM_NODEID"' _ \\
  {training} --num-workers {workers} --master-addr "$address" &
step=$!

# srun passes USR1 on to the coordinators: they save and end with 75.
trap 'kill -USR1 "$step"' USR1
trap 'kill -TERM "$step"' TERM
{wait}
if [ "$code" -eq 75 ] || [ "$code" -eq 6 ]; then
  echo "ended with $code: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def main() -> int:
    options = batch_parser(str(__doc__), EXAMPLE)
    options.add_argument(
        "--sbatch",
        type=one_line,
        action="append",
        default=[],
        metavar="OPTION",
        help="further #SBATCH lines, such as --sbatch=--partition=long",
    )
    arguments = options.parse_args()
    lines = [f"#SBATCH {line}" for line in arguments.sbatch]
    return submit(fill(TEMPLATE, arguments, lines), ["sbatch"], arguments.dry_run)


if __name__ == "__main__":
    run(main)
