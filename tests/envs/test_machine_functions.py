"""What an environment calls that may round by CPU."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_ppo.envs.machine_functions import machine_functions, machine_functions_of
from tests.envs import sample_functions


class Bent(gymnasium.Wrapper):
    def step(self, action: int) -> tuple:
        observation, *rest = self.env.step(action)
        return bent(observation), *rest


class Drawn(gymnasium.Wrapper):
    def render(self) -> None:
        np.sin(0.5)


def bent(x: np.ndarray) -> np.ndarray:
    return np.tanh(x)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("CartPole-v1", "cos, sin"),
        ("Acrobot-v1", "**, cos, sin"),
        ("Blackjack-v1", ""),
        ("tests.envs.sample_envs:Chain-v0", ""),
        ("tests.contract.tiny_envs:SixActions-v0", ""),
    ],
)
def test_functions_of_libm_are_found(name: str, found: str) -> None:
    assert machine_functions(gymnasium.make(name)) == found


def test_wrappers_and_what_they_call_are_searched() -> None:
    assert machine_functions(Bent(gymnasium.make("tests.envs.sample_envs:Chain-v0"))) == "tanh"


def test_rendering_is_left_out() -> None:
    assert machine_functions(Drawn(gymnasium.make("tests.envs.sample_envs:Chain-v0"))) == ""


def test_compiled_packages_are_found() -> None:
    pytest.importorskip("Box2D")
    assert "Box2D" in machine_functions(gymnasium.make("LunarLander-v3"))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (sample_functions.called_by_another_name, "cos"),
        (sample_functions.taken_from_a_table, "tanh"),
        (sample_functions.called_by_default, "cosh"),
        (sample_functions.in_another_module, "sum"),
        (sample_functions.imported_inside, "scipy"),
        (sample_functions.kept_by_a_decorator, "log"),
        (sample_functions.plain, ""),
    ],
)
def test_functions_are_found_behind_other_names(function: Any, found: str) -> None:
    assert machine_functions_of(function) == found


def test_powers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make("tests.envs.sample_envs:Chain-v0")
    monkeypatch.setattr(type(env.unwrapped), "scaled", sample_functions.scaled, raising=False)
    assert machine_functions(env) == "**"
