"""The examples work as they stand."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parallel_ppo
from parallel_ppo.commands import train
from parallel_ppo.exits import InputError
from tests.conftest import ROOT

SHORT = ["--num-envs", "8", "--n-steps", "32", "--batch-size", "64", "--total-timesteps", "256", "--quiet"]


def trained(env: str, run: Path) -> str:
    flags = [*SHORT, "--env", env, "--set", "training.normalize_observations=true"]
    assert train.train_sequential([*flags, "--output-dir", str(run)]) == 0
    return str(run)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "state_plane.py"))


def test_the_state_plane_shows_the_policy(example: dict[str, Any], tmp_path: Path) -> None:
    """Actions and values of the grid are those of the trained policy, one state at a time."""
    run = trained("Pendulum-v1", tmp_path / "run")
    _, x, y, action, value, path = example["sample"](run)
    policy = parallel_ppo.load(run)
    for place in ((0, 0), (17, 60), (120, 90)):
        angle, speed = x[place], y[place]
        observation = np.array([np.cos(angle), np.sin(angle), speed], np.float32)
        assert action[place] == pytest.approx(policy.act(observation, deterministic=True)[0], rel=1e-4)
        assert value[place] == pytest.approx(policy.value(observation), rel=1e-4, abs=1e-5)
    assert np.ptp(value) > 0.1 and len(path) == 201


def test_the_state_plane_is_drawn(example: dict[str, Any], tmp_path: Path) -> None:
    run = trained("MountainCar-v0", tmp_path / "run")
    assert set(np.unique(example["sample"](run)[3])) <= {-1, 0, 1}
    assert example["main"]([run]) == 0
    assert (tmp_path / "run" / "plane.png").stat().st_size > 10_000


def test_an_environment_without_a_plane_is_refused(example: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CartPole-v1: has no state plane to draw; known are Pendulum-v1"):
        example["main"]([trained("CartPole-v1", tmp_path / "run")])
