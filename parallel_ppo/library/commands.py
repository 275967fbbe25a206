"""The commands that use a trained policy, as functions.

Each runs `parallel-ppo NAME` in a process of its own, as `train` does. A keyword is the command's flag:
`num_episodes=8` is `--num-episodes 8`, `deterministic=True` is `--deterministic`.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from parallel_ppo import exits
from parallel_ppo.child import command
from parallel_ppo.exits import ExitCode, RunError
from parallel_ppo.library.words import in_python

Source = str | os.PathLike[str]
ERRORS: dict[int, type[RunError]] = {
    int(error.code): error for error in (exits.InputError, exits.StorageError, exits.NumbersError)
}


def evaluate(source: Source, **options: Any) -> dict[str, Any]:
    """Plays episodes with a run's policy and returns the report that `evaluate.py` writes; here it is
    written only where `output` is given.
    """
    with tempfile.TemporaryDirectory(prefix="evaluate-") as folder:
        output = os.path.expanduser(options.pop("output", None) or f"{folder}/evaluation.json")
        _run("evaluate", source, {"quiet": True, "output": output} | options)
        return json.loads(Path(output).read_text())


def play(source: Source, output: Source, **options: Any) -> Path:
    """Films a policy into an MP4 or a GIF."""
    _run("play", source, {"quiet": True, "output": output} | options)
    return Path(output).expanduser().absolute()


def export(source: Source, output: Source, **options: Any) -> Path:
    """Writes a policy as ONNX."""
    _run("export", source, {"quiet": True, "output": output} | options)
    return Path(output).expanduser().absolute()


def push(source: Source, repo: str, **options: Any) -> str:
    """Shares a policy on the Hugging Face hub; returns the command's report."""
    return _run("push", source, {"repo": repo} | options).stdout.strip()


def verify(source: Source, **options: Any) -> bool:
    """Trains a shared policy again: whether every compared iteration is the same."""
    return _run("verify", source, {"quiet": True} | options).returncode == ExitCode.DONE


def _run(name: str, source: Source, options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    words = [name, os.path.expanduser(source)]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, os.path.expanduser(value) if isinstance(value, os.PathLike | str) else str(value)]
    outcome = subprocess.run(
        command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    # Python's own status after a crash is 1 too, but then there is no verdict.
    is_verdict = outcome.returncode == ExitCode.DIFFERENT and outcome.stdout
    if outcome.returncode and not is_verdict:
        lines = outcome.stderr.strip().splitlines() or [f"{name} ended with status {outcome.returncode}"]
        error = ERRORS.get(outcome.returncode, RunError)(in_python(lines[-1].removeprefix("error: ")))
        error.code = outcome.returncode
        raise error
    return outcome
