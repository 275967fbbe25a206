"""The slice contract, with real environments: saved states are restored."""

import numpy as np
import pytest

from parallel_ppo.envs import procgen as procgen_env
from parallel_ppo.envs.families import make_slice, probe
from parallel_ppo.envs.single import pack_arrays, unpack_arrays
from parallel_ppo.exits import InputError
from parallel_ppo.settings import procgen
from parallel_ppo.settings.schema import EnvSettings, Settings
from tests.conftest import small_settings


def actions(settings: Settings, count: int, seed: int = 0) -> np.ndarray:
    spec = probe(settings).action
    return (
        np.random.default_rng(seed)
        .integers(0, spec.sizes[0], (count, settings.sizes.slice_envs, 1))
        .astype(np.float32)
    )


def play(env, rows: np.ndarray) -> list[np.ndarray]:
    seen = []
    for row in rows:
        step = env.step(row)
        seen += [step.observation.copy(), step.reward.copy(), step.episode_start.copy()]
    return seen


@pytest.mark.procgen
@pytest.mark.parametrize("game", procgen.GAMES)
def test_a_restored_procgen_slice_replays_exactly(game: str) -> None:
    settings = small_settings(game, "nature")
    env, other = make_slice(settings, 0), make_slice(settings, 1)
    env.reset()
    rows = actions(settings, 60)
    play(env, rows[:30])
    states = env.get_state()
    expected = play(env, rows[30:])
    observation, exact = other.set_state(states)
    assert exact.all()
    assert observation.shape == (8, 64, 64, 3)
    for got, wanted in zip(play(other, rows[30:]), expected, strict=True):
        assert np.array_equal(got, wanted)


@pytest.mark.procgen
@pytest.mark.parametrize(
    ("mode", "game"), [(mode, game) for mode, games in procgen.GAMES_WITH_MODE.items() for game in games]
)
def test_games_start_in_the_modes_that_they_have(mode: str, game: str) -> None:
    env = make_slice(small_settings(game, "nature", env__distribution_mode=mode), 0)
    same = (env.reset() == env.reset()[0]).all()
    assert same == (mode == "exploration")  # its one level opens every episode
    env.close()


def test_a_restored_gymnasium_slice_replays_exactly() -> None:
    settings = small_settings()
    env, other = make_slice(settings, 0), make_slice(settings, 0)
    env.reset()
    rows = actions(settings, 80)
    play(env, rows[:40])
    states = env.get_state()
    expected = play(env, rows[40:])
    _, exact = other.set_state(states)
    assert exact.all()
    for got, wanted in zip(play(other, rows[40:]), expected, strict=True):
        assert np.array_equal(got, wanted)


def test_slices_and_episodes_have_their_own_seeds() -> None:
    settings = small_settings(env__slice_envs=8)
    first, second = make_slice(settings, 0).reset(), make_slice(settings, 1).reset()
    assert len({row.tobytes() for row in (*first, *second)}) == 16


def test_a_cut_episode_hands_over_its_last_observation() -> None:
    settings = small_settings("Acrobot-v1", env__kwargs={"max_episode_steps": 5})
    env = make_slice(settings, 0)
    env.reset()
    for row in np.zeros((4, 8, 1), np.float32):
        step = env.step(row)
        assert not step.episode_start.any() and step.final_observation is None
    step = env.step(np.zeros((8, 1), np.float32))
    assert step.episode_start.all() and step.truncated.all()
    assert not np.array_equal(step.final_observation, step.observation)


def test_plain_arrays_survive_packing_and_nothing_else_is_packed() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float64).reshape(2, 3),
        "b": np.array(5),
        "c": np.zeros((0,), np.float32),
    }
    back = unpack_arrays(pack_arrays(arrays))
    assert all(
        np.array_equal(arrays[key], back[key]) and arrays[key].shape == back[key].shape for key in arrays
    )
    with pytest.raises(TypeError, match="plain numbers"):
        pack_arrays({"x": np.array([object()])})


@pytest.mark.procgen
def test_the_garbage_collector_closes_no_environment() -> None:
    """If this thread is making another environment, closing would deadlock."""
    from gym3.libenv import CEnv

    settings = small_settings("coinrun", "nature")
    env = make_slice(settings, 0)
    closed = []
    env.native._close = env.native.close  # type: ignore[attr-defined]
    env.native.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    CEnv.__del__(env.native)  # type: ignore[attr-defined]
    assert not closed
    env.native._close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "is_installed", "message"),
    [
        ("2.1.0", True, "needs NumPy below 2, installed is 2.1.0"),
        ("1.26.4", False, "is not installed; pip install"),
    ],
)
def test_a_missing_procgen_is_one_line(
    version: str, is_installed: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procgen_env.importlib.util, "find_spec", lambda name: is_installed or None)
    monkeypatch.setattr(procgen_env.np, "__version__", version)
    with pytest.raises(InputError, match=message):
        procgen_env.probe(EnvSettings(id="coinrun"))
