"""A first iteration that takes long is announced."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from parallel_ppo.envs.contract import ReplayCheck
from parallel_ppo.policies.policy import Policy
from parallel_ppo.training import expected_time
from parallel_ppo.training.expected_time import slow_iteration
from parallel_ppo.training.planning import Plan, make_plan
from tests.conftest import small_settings


class LargeImages(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (120, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        return np.zeros((120, 160, 3), np.uint8), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        return np.zeros((120, 160, 3), np.uint8), 0.0, False, False, {}


def plan_of(env_id: str, folder: Path) -> Plan:
    return make_plan(small_settings(env_id, "auto"), kind="sequential", output=folder / "run")


def test_the_time_of_slow_steps_is_announced(tmp_path: Path) -> None:
    plan = plan_of("CartPole-v1", tmp_path)
    policy = Policy(plan.settings, plan.spec)
    assert slow_iteration(plan, policy) is None
    slow = plan._replace(replay_check=ReplayCheck(step_seconds=5.0))
    steps = plan.settings.sizes.steps_per_iteration
    assert f"takes about {5 * steps} s (5000.0 ms a step of CartPole-v1" in str(slow_iteration(slow, policy))


def test_large_images_are_timed_and_a_smaller_shape_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "LargeImages-v0" not in gymnasium.registry:
        gymnasium.register("LargeImages-v0", entry_point=LargeImages, max_episode_steps=20)
    monkeypatch.setattr(expected_time, "SLOW_ITERATION", 1e-6)
    plan = plan_of("LargeImages-v0", tmp_path)
    line = str(slow_iteration(plan, Policy(plan.settings, plan.spec)))
    assert "images of 120 x 160 take most" in line and "ResizeObservation: {shape: [60, 80]}" in line
