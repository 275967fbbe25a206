"""The examples work as they stand."""

import runpy
from pathlib import Path

import pytest

from parallel_ppo.commands import train
from parallel_ppo.exits import InputError
from tests.conftest import ROOT

SHORT = ["--num-envs", "8", "--n-steps", "32", "--batch-size", "64", "--total-timesteps", "256", "--quiet"]


def test_the_state_plane(tmp_path: Path) -> None:
    draw = runpy.run_path(str(ROOT / "examples" / "state_plane.py"))["main"]
    for env in ("Pendulum-v1", "MountainCar-v0", "CartPole-v1"):
        run = [*SHORT, "--env", env, "--set", "training.normalize_observations=true"]
        assert train.train_sequential([*run, "--output-dir", str(tmp_path / env)]) == 0
    assert draw([str(tmp_path / "Pendulum-v1")]) == draw([str(tmp_path / "MountainCar-v0")]) == 0
    assert (tmp_path / "MountainCar-v0" / "plane.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="CartPole-v1: has no state plane to draw; known are Pendulum-v1"):
        draw([str(tmp_path / "CartPole-v1")])
