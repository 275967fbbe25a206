"""Asking SLURM to start a preempted job again (`--requeue`)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from parallel_ppo.exits import ExitCode, InputError

PATIENCE = 10.0  # seconds; a preempted job does not have many


class Requeue:
    def __init__(self, wanted: bool) -> None:
        """Says at once, not hours later, when there is nobody to ask."""
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
            raise InputError("--requeue: there is no `scontrol` on PATH to ask; leave --requeue out")

    def should_continue(self, output: Path | None) -> bool:
        """The job that SLURM starts again has the same command line: it finds its own run."""
        return self.wanted and output is not None and (output / "config.yaml").is_file()

    def ask_if_preempted(self, code: ExitCode) -> None:
        if not self.wanted or code != ExitCode.PREEMPTED:
            return
        command = ["scontrol", "requeue", self.job]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            problem = answer.stderr.strip() or f"exit code {answer.returncode}" if answer.returncode else None
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is None:
            print(f"asked SLURM to start job {self.job} again", file=sys.stderr)
        else:
            print(f"warning: `{' '.join(command)}` failed: {problem}", file=sys.stderr)
