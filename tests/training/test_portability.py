"""Tests of the reasons that tie a run to its machine."""

import math

import pytest

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.envs.versions import python_versions
from parallel_ppo.training.portability import tied_to_machine
from tests.conftest import small_settings

SPEC = EnvSpec((4,), "float32", ActionSpec("categorical", (2,)), 8)
NATIVE = {"training__kernels": "native"}


def halved(left: float) -> float:
    return left / 2


def cosine(left: float) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * left)


@pytest.mark.parametrize(
    ("values", "called", "reason"),
    [
        (NATIVE, "", None),
        (NATIVE, "cos, sin", "env.id: CartPole-v1 calls cos, sin"),
        ({"training__kernels": "torch"}, "", "training.kernels: torch's kernels"),
        (NATIVE | {"training__learning_rate_schedule": f"{__name__}:halved"}, "", None),
        (
            NATIVE | {"training__learning_rate_schedule": f"{__name__}:cosine"},
            "",
            f"training.learning_rate_schedule: {__name__}:cosine calls cos",
        ),
    ],
)
def test_reasons_name_their_key(values: dict, called: str, reason: str | None) -> None:
    found = tied_to_machine(small_settings(**values), SPEC, called)
    assert not found if reason is None else found[0].startswith(reason)


def test_only_environments_in_python_need_a_version_of_python() -> None:
    assert python_versions(small_settings("CartPole-v1")).keys() == {"Python", "NumPy's rules"}
    assert not python_versions(small_settings("coinrun", "nature"))
