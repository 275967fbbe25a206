"""From the command to the first environment step: what keeps it short."""

import subprocess
import sys

from tests.conftest import ROOT


def test_planning_imports_neither_torch_nor_tensorboard() -> None:
    """The fork server is started by a coordinator that has not imported torch, so that both import it at the same time."""
    code = (
        "import sys, parallel_ppo.commands.train, parallel_ppo.training.planning, parallel_ppo.workers.fork_server\n"
        "print([name for name in ('torch', 'tensorboard', 'matplotlib', 'scipy') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_session_imports_no_tensorboard() -> None:
    code = "import sys, parallel_ppo.training.session, parallel_ppo.records.display\nprint('tensorboard' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
