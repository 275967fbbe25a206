"""Setting the next level in the state of a Procgen environment changes nothing else; first frames of levels."""

import contextlib

import numpy as np
import pytest

from parallel_ppo.envs.families import are_training_frames, make_slice
from parallel_ppo.envs.procgen import BOUNDS, ProcgenSlice, _bounds_offset, first_frames
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


@pytest.mark.parametrize("game", ["coinrun", "maze"])
def test_first_frames_are_those_with_which_episodes_begin(game: str) -> None:
    settings = small_settings(
        game, "nature", env__num_levels=70, env__start_level=20, env__use_sequential_levels=True
    )
    found = dict(first_frames(settings.env, range(20, 90)))
    assert list(found) == list(range(20, 90))
    for level in (20, 60, 89):
        alone = settings.env.model_copy(update={"num_levels": 1, "start_level": level})
        with contextlib.closing(ProcgenSlice(settings=alone, seed=7, first_env=0, num_envs=1)) as env:
            frames = env.reset()
            assert are_training_frames(settings.env, frames).tolist() == [True]
            assert are_training_frames(settings.env, frames ^ 1).tolist() == [False]
