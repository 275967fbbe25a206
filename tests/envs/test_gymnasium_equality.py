"""The contract over Gymnasium: Gaussian actions, normalised and mixed observations, simulations,
environments of one's own.
"""

import importlib.util
from pathlib import Path

import pytest

from tests.conftest import command, train, train_here

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
NORMALISED = ["--set", "training.normalize_observations=true"]
SHAPE = ["--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--n-epochs", "2", "--seed", "7"]
RUNS = {
    "pendulum": ["--env", "Pendulum-v1", *NORMALISED, *SHAPE],
    "mixed": ["--env", "tests.envs.sample_envs:Camera-v0", *NORMALISED, *SHAPE],
    "own-state": ["--env", "tests.envs.sample_envs:Walker-v0", *NORMALISED, *SHAPE],
    "used": [
        "--env",
        "tests.envs.sample_envs:Peculiar-v0",
        "--set",
        "env.kwargs={habit: differs when reused}",
        *SHAPE,
    ],
    "walker": ["--env", "BipedalWalker-v3", "--set", "env.kwargs.max_episode_steps=7", *NORMALISED, *SHAPE],
    "reacher": ["--env", "Reacher-v5", *NORMALISED, *SHAPE],
}


def arguments(name: str) -> list[str]:
    if name == "reacher" and importlib.util.find_spec("mujoco") is None:
        pytest.skip("needs the extra [mujoco]")
    if name == "walker" and importlib.util.find_spec("Box2D") is None:
        pytest.skip("needs the extra [box2d]")
    return RUNS[name]


@pytest.mark.parametrize("name", RUNS)
def test_workers_and_resumes_leave_no_trace(name: str, tmp_path: Path) -> None:
    """Sequential, 2 workers, and 4 workers stopped half-way and resumed with 1: one policy."""
    chosen = arguments(name)
    whole = train_here(tmp_path / "whole", *chosen, "--total-timesteps", "1024")
    assert whole.summary["bit_exact"] and whole.summary["env_steps"] == 1024
    two = train(tmp_path / "two", *chosen, "--total-timesteps", "1024", "--num-workers", "2")
    halves = tmp_path / "halves"
    train(halves, *chosen, "--total-timesteps", "512", "--num-workers", "4")
    resumed = train(halves, "--resume", str(halves), "--total-timesteps", "1024", "--num-workers", "1")
    for run in (two, resumed):
        assert run.summary["policy_sha256"] == whole.summary["policy_sha256"]
        assert run.learning == whole.learning
        assert run.summary["bit_exact"]


def test_auto_starts_no_process_for_small_work_and_says_so(tmp_path: Path) -> None:
    small = [
        "--env",
        "CartPole-v1",
        "--num-envs",
        "4",
        "--n-steps",
        "16",
        "--batch-size",
        "64",
        "--total-timesteps",
        "256",
    ]
    auto = command("train_parallel_timed.py", *small, "--verbose", directory=tmp_path / "auto")
    one = train(tmp_path / "one", *small, "--num-workers", "1")
    assert "no worker processes: a step of CartPole-v1 takes" in auto.out
    assert auto.summary["policy_sha256"] == one.summary["policy_sha256"]
