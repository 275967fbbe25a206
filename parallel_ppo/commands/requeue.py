"""`--requeue`: ask SLURM to start a job again whose time limit is near."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from parallel_ppo.exits import InputError

SCONTROL_SECONDS = 10.0  # a job near its limit has few
SIGNAL = "SIGUSR1"  # what `#SBATCH --signal=USR1@120` sends; `scancel` sends TERM, and must end the job


class Requeue:
    def __init__(self, wanted: bool) -> None:
        """Raises at the start if there is no SLURM to ask."""
        self.wanted = wanted
        self.job = os.environ.get("SLURM_JOB_ID", "")
        if not wanted:
            return
        if not self.job:
            raise InputError(
                "--requeue: SLURM_JOB_ID is not set, so this is not a SLURM job; leave --requeue out, and"
                " restart on exit code 75"
            )
        if shutil.which("scontrol") is None:
            raise InputError("--requeue: `scontrol` is not on PATH; leave --requeue out")

    def should_continue(self, output: Path | None) -> bool:
        """The job that SLURM starts again has the same command line: it finds its run."""
        return self.wanted and output is not None and (output / "config.yaml").is_file()

    def ask_after(self, signal_name: str | None) -> None:
        if not self.wanted or signal_name != SIGNAL:
            return
        command = ["scontrol", "requeue", self.job]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_SECONDS)
            problem = answer.stderr.strip() or f"exit code {answer.returncode}" if answer.returncode else None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is None:
            print(f"asked SLURM to start job {self.job} again", file=sys.stderr)
        else:
            print(f"warning: `{' '.join(command)}` failed: {problem}", file=sys.stderr)
