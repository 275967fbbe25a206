"""From the command to the first environment step: what keeps it short."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_planning_imports_neither_torch_nor_tensorboard() -> None:
    """The fork server is started by a coordinator that has not imported torch, so that both import it at
    the same time.
    """
    code = (
        "import sys, parallel_ppo.commands.train, parallel_ppo.training.planning,"
        " parallel_ppo.workers.fork_server\nprint([name for name in ('torch', 'tensorboard', 'matplotlib',"
        " 'scipy') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_training_command_imports_no_numpy_before_its_threads_are_set() -> None:
    """NumPy's QR draws the initial weights and rounds by the number of threads."""
    code = "import sys, parallel_ppo.commands.train; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_session_imports_no_tensorboard() -> None:
    code = (
        "import sys, parallel_ppo.training.session, parallel_ppo.records.display\nprint('tensorboard' in"
        " sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


SCRIPTS = [
    f"{folder}{path.name}"
    for folder in ("", "tools/", "benchmarks/", "examples/")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text()
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_the_virtual_environment_of_its_checkout(name: str, tmp_path: Path) -> None:
    """Without site-packages (-S) nothing that is required can be imported."""
    for package in ("parallel_ppo", "benchmarks", "tools"):
        if not name.startswith(package):
            (tmp_path / package).symlink_to(ROOT / package)
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text((ROOT / name).read_text())
    command = [sys.executable, "-S", str(script), "--env", "CartPole-v1"]
    alone = subprocess.run(command, capture_output=True, text=True)
    assert alone.returncode == 2 and alone.stderr.count("\n") == 1
    assert "has no module 'torch'; run" in alone.stderr and "setup.sh" in alone.stderr
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout == f"{script} --env CartPole-v1\n" and found.returncode == 0
