"""The contract: what is learned depends on the configuration and the seed. Not on workers, processes,
stops or resumes.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, train, train_here

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SHAPE = ["--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--seed", "7"]
SMALL = {
    "coinrun-impala": ["--env", "coinrun", "--policy", "impala", "--n-epochs", "1", *SHAPE],
    "starpilot-nature": ["--env", "starpilot", "--policy", "nature", *SHAPE],
    "cartpole-mlp": ["--env", "CartPole-v1", *SHAPE],
}
FULL_SHAPE = ["--num-envs", "32", "--n-steps", "64", "--batch-size", "512", "--seed", "7"]
FULL = {
    "coinrun-impala": ["--env", "coinrun", *FULL_SHAPE],
    "starpilot-nature": ["--env", "starpilot", "--policy", "nature", *FULL_SHAPE],
    "cartpole-mlp": ["--env", "CartPole-v1", *FULL_SHAPE],
}


def assert_same_at_any_number_of_workers(
    tmp_path: Path, arguments: list[str], steps: int, workers: tuple[int, ...]
) -> None:
    budget = [*arguments, "--total-timesteps", str(steps)]
    twin = train_here(tmp_path / "sequential", *budget)
    assert twin.summary["bit_exact"] and twin.summary["env_steps"] == steps
    for number in workers:
        run = train(tmp_path / f"workers{number}", *budget, "--num-workers", str(number))
        assert run.summary["policy_sha256"] == twin.summary["policy_sha256"], f"{number} workers"
        assert run.learning == twin.learning


@pytest.mark.parametrize("name", SMALL)
def test_same_bits_at_any_number_of_workers(name: str, tmp_path: Path) -> None:
    workers = {"coinrun-impala": (1, 3), "starpilot-nature": (2, 4), "cartpole-mlp": (1, 3)}
    assert_same_at_any_number_of_workers(tmp_path, SMALL[name], 512, workers[name])


@pytest.mark.full
@pytest.mark.parametrize("name", FULL)
def test_same_bits_at_full_shape(name: str, tmp_path: Path) -> None:
    assert_same_at_any_number_of_workers(tmp_path, FULL[name], 8192, (1, 2, 4))


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """With Procgen; with Gymnasium see tests/envs/test_gymnasium_equality.py."""
    chosen, halves = SMALL["starpilot-nature"], tmp_path / "halves"
    whole = train_here(tmp_path / "whole", *chosen, "--total-timesteps", "1024")
    train(halves, *chosen, "--total-timesteps", "512", "--num-workers", "2")
    resumed = train(halves, "--resume", str(halves), "--total-timesteps", "1024", "--num-workers", "3")
    assert resumed.summary["policy_sha256"] == whole.summary["policy_sha256"]
    assert resumed.learning == whole.learning
    assert (halves / "episodes.jsonl").read_text() == (tmp_path / "whole" / "episodes.jsonl").read_text()


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """The sequential trainer; the parallel one is interrupted in tests/workers/test_faults.py."""
    horizon = ["--set", "training.schedule_steps=100000"]  # the same for all three budgets
    arguments, broken = [*SMALL["cartpole-mlp"], *horizon, "--num-threads", "1"], tmp_path / "broken"
    budget = ["--total-timesteps", "1000000", "--quiet", "--output-dir", str(broken)]
    command = [sys.executable, str(ROOT / "train_timed.py"), *arguments, *budget]
    metrics = broken / "metrics.jsonl"
    deadline = time.monotonic() + 120
    process = subprocess.Popen(command)
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
    lines = metrics.read_text().count("\n")
    total = str((lines + 2) * 256)
    resumed = train(broken, "--resume", str(broken), "--total-timesteps", total, script="train_timed.py")
    whole = train_here(tmp_path / "whole", *arguments, "--total-timesteps", total)
    assert resumed.summary["policy_sha256"] == whole.summary["policy_sha256"]
    assert resumed.learning == whole.learning


def test_another_seed_learns_something_else(tmp_path: Path) -> None:
    arguments = [*SMALL["cartpole-mlp"], "--total-timesteps", "256", "--seed"]
    runs = [train_here(tmp_path / seed, *arguments, seed) for seed in ("1", "2")]
    assert runs[0].summary["policy_sha256"] != runs[1].summary["policy_sha256"]
