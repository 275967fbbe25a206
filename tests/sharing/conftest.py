"""One small run, and the folder that a push of it would send."""

import shutil
from pathlib import Path

import pytest

from parallel_ppo.commands.evaluate import evaluate
from parallel_ppo.sharing.command import push
from tests.conftest import train

SMALL = ["--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "16", "--batch-size", "64", "--seed", "3",
         "--curiosity", "rnd", "--set", "curiosity.warmup_steps=64"]  # fmt: skip
REPO = "somebody/ppo-cartpole"


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sharing") / "run"
    train(root, *SMALL, "--total-timesteps", "512", script="train_timed.py")
    assert evaluate([str(root), "--num-episodes", "4", "--max-steps", "7", "--quiet"]) == 0
    return root


@pytest.fixture(scope="session")
def pristine(shared_run: Path) -> Path:
    folder = shared_run.parent / "shared"
    assert push([str(shared_run), "--repo", REPO, "--dry-run", str(folder), "--skip-play", "--quiet"]) == 0
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "shared"))
