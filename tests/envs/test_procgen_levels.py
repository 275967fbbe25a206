"""Setting the next level in the state of a Procgen environment changes nothing else."""

import numpy as np
import pytest

from parallel_ppo.envs.families import make_slice
from parallel_ppo.envs.procgen import BOUNDS, _bounds_offset
from parallel_ppo.exits import EnvironmentFault
from tests.conftest import small_settings

pytestmark = pytest.mark.procgen
CHOSEN = {0: 77, 3: 5, 5: 123_456_789}


def level_bounds(state: bytes) -> tuple[int, ...]:
    return BOUNDS.unpack_from(state, _bounds_offset(state))


@pytest.mark.parametrize("game", ["coinrun", "starpilot", "bigfish", "chaser"])
def test_the_chosen_level_is_the_next_that_is_opened(game: str) -> None:
    settings = small_settings(game, "nature", env__num_levels=50, env__start_level=20)
    env, other = make_slice(settings, 0), make_slice(settings, 0)
    assert np.array_equal(env.reset(), other.reset())
    assert all(level_bounds(state) == (20, 70) for state in env.get_state())
    env.set_next_levels(CHOSEN)
    bounds = [level_bounds(state) for state in env.get_state()]
    assert bounds == [(CHOSEN[i], CHOSEN[i] + 1) if i in CHOSEN else (20, 70) for i in range(8)]
    rng, ends, levels = np.random.default_rng(1), np.zeros(8, int), {}
    for _ in range(2500):
        action = rng.integers(0, 15, (8, 1))
        playing = env.playing_levels()
        step, twin = env.step(action), other.step(action)
        untouched = [i for i in range(8) if ends[i] == 0]
        assert np.array_equal(step.reward[untouched], twin.reward[untouched])
        assert np.array_equal(step.episode_start[untouched], twin.episode_start[untouched])
        for i in step.episode_start.nonzero()[0].tolist():
            ends[i] += 1
            assert playing[i] == step.level_seed[i]
            if ends[i] == 2:
                levels[i] = int(step.level_seed[i])
        same = [i for i in range(8) if ends[i] == 0 or i not in CHOSEN]
        assert np.array_equal(step.observation[same], twin.observation[same])
        if all(i in levels for i in CHOSEN):
            break
    assert {i: levels[i] for i in CHOSEN} == CHOSEN
    assert all(20 <= level < 70 for i, level in levels.items() if i not in CHOSEN)
    env.close()
    other.close()


def test_a_state_of_another_game_is_refused_before_the_native_reader() -> None:
    """That would end the process."""
    env, other = (make_slice(small_settings(game, "nature"), 0) for game in ("coinrun", "starpilot"))
    for states in (other.get_state(), [b"", *env.get_state()[1:]]):
        with pytest.raises(EnvironmentFault, match="coinrun cannot continue from the saved state of"):
            env.set_state(states)
