"""Spaces that cannot be used are refused before memory is spent on them."""

import pytest
from gymnasium import spaces

from parallel_ppo.envs.spaces import action_writer, observation_reader
from parallel_ppo.exits import InputError

HUGE = [spaces.Discrete(2**40), spaces.MultiBinary(10**9), spaces.MultiDiscrete([2**40, 2])]


@pytest.mark.parametrize("space", HUGE, ids=str)
def test_a_huge_space_is_one_line(space: spaces.Space) -> None:
    for use in (observation_reader, action_writer):
        with pytest.raises(InputError, match="at most 16,777,215") as caught:
            use(space, "Huge-v0")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="Huge-v0 has observations of"):
        observation_reader(spaces.Dict({"a": space, "b": spaces.Discrete(2)}), "Huge-v0")
