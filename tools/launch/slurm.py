#!/usr/bin/env python3
"""Submit a training on several nodes to SLURM: one task per node, its CPUs for the workers.

Two minutes before the time limit the nodes save, and the job goes back into the queue; so it does after a
lost node, if the run has saved anything since the job started. `scancel` saves and ends the job. The number
of nodes may be a range (--nodes 1-4) and may change with every start. An array job (--sbatch=--array=1-5)
trains one run per task: the task's number is the seed and ends the name of the run directory.
"""

import re

from job import InputError, batch_parser, fill, number_from, run, submit

EXAMPLE = (
    "tools/launch/slurm.py --nodes 4 --cpus 32 --time 24:00:00 --output-dir runs/big -- --env coinrun"
    " --num-envs 512 --batch-size 16384"
)

TEMPLATE = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --cpus-per-task={cpus}
#SBATCH --time={time}
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log
{extra}
set -u
cd {project} || exit 2
output={output}${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}
newest() {{ find "$output/checkpoints" -maxdepth 1 -name 'step_*' 2>/dev/null | sort -V | tail -n 1; }}
before=$(newest)
{secret}

# One task per node, asked for here: as a directive it would make SLURM take the fewest nodes of a range.
# --kill-on-bad-exit=0, because the nodes end each other in order and each says why.
srun --ntasks-per-node=1 --cpus-per-task={cpus} --cpu-bind=cores --kill-on-bad-exit=0 \\
  {training} --output-dir "$output" --num-workers {cpus} {rest} \\
  ${{SLURM_ARRAY_TASK_ID:+--seed "$SLURM_ARRAY_TASK_ID"}} &
step=$!

# USR1: the time limit is near. TERM: scancel. srun passes USR1 on, and the nodes save; TERM would kill it.
signal=none
trap 'signal=USR1; kill -USR1 "$step"' USR1
trap 'signal=TERM; kill -USR1 "$step"' TERM
{wait}
again=no
if [ "$code" -eq 75 ] && [ "$signal" = USR1 ]; then
  again=yes
elif [ "$signal" = none ] && {{ [ "$code" -eq 6 ] || [ "$code" -gt 128 ]; }}; then  # a node was lost
  [ "$(newest)" != "$before" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {limit} ] && again=yes
fi
echo "ended with $code (signal: $signal); back into the queue: $again"
[ "$again" = yes ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
"""


def main() -> int:
    options = batch_parser(str(__doc__), EXAMPLE, "sbatch", "N|MIN-MAX")
    options.add_argument(
        "--max-restarts",
        type=number_from(0, 10_000),
        default=100,
        help="starts of the job after which a lost node ends it (default: %(default)s)",
    )
    arguments = options.parse_args()
    if not re.fullmatch(r"[1-9]\d{0,3}(-[1-9]\d{0,3})?", arguments.nodes):
        raise InputError(f"--nodes {arguments.nodes}: expected a number or a range such as 1-4")
    script = fill(TEMPLATE, arguments, "#SBATCH", limit=str(arguments.max_restarts))
    return submit(script, ["sbatch"], arguments.dry_run)


if __name__ == "__main__":
    run(main)
