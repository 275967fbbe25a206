"""Worker processes learn what the sequential trainer learns, from environments that processes tell apart."""

from pathlib import Path

import pytest

from tests.conftest import train

pytestmark = pytest.mark.multiprocess
SMALL = [
    "--num-envs",
    "4",
    "--n-steps",
    "8",
    "--batch-size",
    "32",
    "--n-epochs",
    "1",
    "--total-timesteps",
    "64",
]


def trained_twice(tmp_path: Path, name: str) -> None:
    arguments = ["--env", f"tests.envs.sample_envs:{name}-v0", *SMALL]
    parallel = train(tmp_path / "parallel", *arguments, "--num-workers", "2")
    sequential = train(tmp_path / "sequential", *arguments, script="train_timed.py")
    assert parallel.summary["bit_exact"] and sequential.summary["bit_exact"]
    assert parallel.summary["policy_sha256"] == sequential.summary["policy_sha256"]


def test_pythons_hash_seed_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    trained_twice(tmp_path, "Unordered")


def test_an_action_may_have_thousands_of_dimensions(tmp_path: Path) -> None:
    trained_twice(tmp_path, "Wide")
