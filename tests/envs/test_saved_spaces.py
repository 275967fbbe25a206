"""Spaces that are saved with a policy come back as they were."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_ppo.envs.spaces import spaces_as_text, spaces_from_text

ACTION = spaces.Discrete(3)
SPACES: list[spaces.Space] = [
    spaces.Box(-np.inf, np.inf, (3,)),
    spaces.Box(np.array([-1.0, -np.inf]), np.array([2.0, 5.0]), dtype=np.float64),
    spaces.Box(0, 255, (8, 9, 3), np.uint8),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 2], start=[1, 0]),
    spaces.MultiDiscrete([[3, 2], [4, 5]]),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"b": spaces.Tuple((ACTION, spaces.MultiBinary(2))), "a": spaces.Box(0, 1, (2, 2))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_as_they_were(space: spaces.Space) -> None:
    assert spaces_from_text(spaces_as_text(space, ACTION)) == (space, ACTION)


def test_what_cannot_be_written_is_left_out() -> None:
    assert spaces_as_text(spaces.Text(5), ACTION) == ""
    assert spaces_as_text(spaces.Box(np.zeros(10**6), np.arange(10**6)), ACTION) == ""


@pytest.mark.parametrize(
    "plain",
    [
        ["Box", [10**6, 10**6], "float32", 0, 1],
        ["Tuple", [["MultiBinary", [10**7]]] * 2],
        ["Box", [2], "float32", [0, 0, 0], 1],
        ["Box", [2], "float32", 2, 1],
        ["Box", [-2], "float32", 0, 1],
        ["Discrete", -1, 0],
        ["Text", 5],
    ],
    ids=str,
)
def test_impossible_spaces_are_refused(plain: list[Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        spaces_from_text(json.dumps([plain, ["Discrete", 3, 0]]))
