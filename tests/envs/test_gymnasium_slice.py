"""The slice contract over Gymnasium: spaces, keyed resets, truncation, states that are saved and restored."""

import numpy as np
import pytest
from gymnasium import spaces

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.envs.gymnasium import GymnasiumSlice, probe
from parallel_ppo.envs.single import pack_arrays, unpack_arrays
from parallel_ppo.envs.spaces import Misfit, action_writer, observation_reader
from parallel_ppo.exits import InputError, NumbersError
from parallel_ppo.settings.schema import EnvSettings
from tests.envs import sample_envs


def make_slice(env_id: str, num_envs: int = 3, **options: object) -> GymnasiumSlice:
    return GymnasiumSlice(settings=EnvSettings(id=env_id, **options), seed=7, first_env=0, num_envs=num_envs)


def drive(env: GymnasiumSlice, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Everything that some steps give, as arrays that can be compared."""
    draws, columns = np.random.default_rng(seed), env.singles[0].action.num_components
    found = []
    for _ in range(steps):
        result = env.step(draws.integers(0, 2, (len(env.singles), columns)).astype(np.float32))
        found += [result.observation, result.reward, result.episode_start, result.truncated]
    return found


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "Camera-v0", "Walker-v0", "ReplayedWalker-v0"]
)
@pytest.mark.parametrize("steps", [0, 17, 90])
def test_a_restored_slice_continues_as_the_original(env_id: str, steps: int) -> None:
    original, copy = make_slice(env_id), make_slice(env_id)
    original.reset()
    drive(original, steps)
    observation, exact = copy.set_state(original.get_state())
    assert exact.all()
    np.testing.assert_array_equal(observation, original.rows)
    for expected, found in zip(drive(original, 60, seed=1), drive(copy, 60, seed=1), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_restored_says_so_and_starts_anew() -> None:
    original, copy = make_slice("Drifting-v0"), make_slice("Drifting-v0")
    original.reset()
    drive(original, 9)
    _, exact = copy.set_state(original.get_state())
    assert not exact.any()
    assert [single.num_actions for single in copy.singles] == [0, 0, 0]


def test_a_stateful_wrapper_is_replayed_not_restored() -> None:
    wrapper = {"gymnasium.wrappers:FrameStackObservation": {"stack_size": 3}}
    original, copy = make_slice("Walker-v0", wrappers=[wrapper]), make_slice("Walker-v0", wrappers=[wrapper])
    original.reset()
    drive(original, 11)
    assert copy.set_state(original.get_state())[1].all()
    np.testing.assert_array_equal(copy.rows, original.rows)


@pytest.mark.parametrize("meaning", ["none", "array", "text", "raises"])
def test_states_of_another_meaning_are_not_asked_for(meaning: str) -> None:
    """`get_state` and `set_state` are common names; if they do not restore, actions are replayed."""
    original, copy = (make_slice("OtherState-v0", kwargs={"meaning": meaning}) for _ in range(2))
    original.reset()
    drive(original, 11)
    assert copy.set_state(original.get_state())[1].all()
    for expected, found in zip(drive(original, 60, seed=1), drive(copy, 60, seed=1), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert make_slice("Walker-v0").singles[2].own is not None


def test_rewards_are_compared_when_a_state_is_restored() -> None:
    original, copy = (
        make_slice("Peculiar-v0", kwargs={"habit": habit}) for habit in ("none", "draws its rewards")
    )
    original.reset()
    drive(original, 5)
    assert not copy.set_state(original.get_state())[1].any()


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("number", "reward", "is_cut", "expected"),
    [
        (0, -4e38, False, "gave the reward -4e+38, which is too large for float32"),
        (1e200, 0, False, "returned an observation with 1e+200 at index 1, which is too large for float32"),
        (1e200, 0, True, "returned an observation with 1e+200 at index 1, which is too large for float32"),
        (np.inf, 0, False, "returned an observation with inf at index 1;"),
    ],
)
def test_a_number_that_float32_cannot_hold(number: float, reward: float, is_cut: bool, expected: str) -> None:
    env = make_slice("Walker-v0", 1)
    env.reset()
    env.singles[0].env.unwrapped.step = lambda action: (np.array([0, number]), reward, False, is_cut, {})
    with pytest.raises(NumbersError) as caught:
        env.step(np.zeros((1, 1), np.float32))
    assert f"environment 0 (Walker-v0, episode 0, step 1) {expected}" in str(caught.value)


def test_resets_are_keyed_by_environment_and_episode() -> None:
    one, whole = (
        GymnasiumSlice(settings=EnvSettings(id="CartPole-v1"), seed=7, first_env=2, num_envs=1),
        make_slice("CartPole-v1"),
    )
    np.testing.assert_array_equal(one.reset()[0], whole.reset()[2])


def test_truncation_hands_over_the_final_observation() -> None:
    env = make_slice("Pendulum-v1", 2)
    env.reset()
    for step in range(200):
        before = env.step(np.zeros((2, 1), np.float32))
        assert before.truncated is not None and before.truncated.all() == (step == 199)
    assert before.final_observation is not None
    assert before.episode_start.all() and not np.array_equal(before.final_observation, before.observation)


def test_termination_wins_over_truncation() -> None:
    env = make_slice(
        "Chain-v0",
        kwargs={"length": 3, "is_cut": False},
        wrappers=[{"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 3}}],
    )
    env.reset()
    results = [env.step(np.zeros((3, 1), np.float32)) for _ in range(3)]
    assert results[-1].episode_start.all() and not results[-1].truncated.any()
    assert results[-1].final_observation is None


# --- spaces -------------------------------------------------------------------------------------------------


def read(space: spaces.Space, value: object) -> np.ndarray:
    reader = observation_reader(space, "Sample-v0")
    row = np.zeros(reader.shape, reader.dtype)
    reader.write(value, row)
    return row


def test_vectors_of_every_kind() -> None:
    space = spaces.Tuple([
        spaces.Box(-1, 1, (2, 2)), spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
    ])  # fmt: skip
    value = (np.array([[1, 2], [3, 4]], np.float32), np.int64(6), np.array([1, 0]), np.array([1, 0], np.int8))
    assert read(space, value).tolist() == [1, 2, 3, 4, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("shape", "arranged"),
    [
        ((9, 11), (9, 11, 1)),
        ((9, 11, 3), (9, 11, 3)),
        ((4, 30, 40), (30, 40, 4)),
        ((4, 9, 11, 3), (9, 11, 12)),
    ],
)
def test_images_end_with_their_channels(shape: tuple[int, ...], arranged: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    image = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    row = read(space, image)
    assert (row.shape, row.dtype) == (arranged, np.uint8)
    if len(shape) == 4:
        np.testing.assert_array_equal(row[..., 3:6], image[1])
    if shape == (4, 30, 40):
        np.testing.assert_array_equal(row[..., 2], image[2])


def test_a_mixed_observation_keeps_every_part() -> None:
    env = sample_envs.Camera()
    observation, _ = env.reset(seed=3)
    row = read(env.observation_space, observation)
    spec = probe(EnvSettings(id="Camera-v0"))
    vector, camera, wide = spec.parts
    assert (spec.vector_shape, spec.image_shapes) == ((7,), [(12, 10, 3), (9, 20, 1)])
    numbers = row[: vector.end].view(np.float32)
    np.testing.assert_allclose(numbers[3:5], observation["state"]["speed"], rtol=1e-6)
    assert numbers[:3].argmax() == observation["state"]["gear"]
    np.testing.assert_array_equal(
        row[camera.offset : camera.end].reshape(camera.shape), observation["camera"]
    )
    np.testing.assert_array_equal(row[wide.offset : wide.end].reshape(9, 20), observation["wide"])
    assert EnvSpec.from_json(spec.as_json()) == spec


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"camera": np.zeros((12, 10), np.uint8)}, "an observation['camera'] of shape (12, 10)"),
        ({"camera": np.zeros((12, 10, 3))}, "an observation['camera'] of type float64"),
        ({"state": {"speed": np.zeros(2)}}, "an observation['state'] without 'gear'"),
        ({"state": {"speed": np.zeros(2), "gear": 7}}, "observation['state']['gear'] 7, which is not in"),
    ],
)
def test_misfits_name_their_part(change: dict, expected: str) -> None:
    env = sample_envs.Camera()
    observation, _ = env.reset(seed=3)
    with pytest.raises(Misfit) as caught:
        read(env.observation_space, observation | change)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), spaces.Tuple([]), spaces.Box(0,
        255, (40, 40, 40), np.uint8)],
    ids=str,
)  # fmt: skip
def test_unsupported_observations_are_refused(space: spaces.Space) -> None:
    with pytest.raises(InputError, match="Sample-v0"):
        observation_reader(space, "Sample-v0")


def test_a_refusal_names_the_wrapper_that_helps() -> None:
    """As MiniGrid's observations are: an image, a direction, and a mission in words."""
    parts = {"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "direction": spaces.Discrete(4)}
    with pytest.raises(InputError) as caught:
        observation_reader(spaces.Dict(parts | {"mission": spaces.Text(99)}), "Grid-v0")
    wrapper = "{gymnasium.wrappers:FilterObservation: {filter_keys: [direction, image]}}"
    assert "observation['mission'] in Text(1, 99" in str(caught.value)
    assert str(caught.value).endswith(f"--set 'env.wrappers=[{wrapper}]' keeps the others")
    words = type("MissionSpace", (spaces.Text,), {"__module__": "minigrid.core.mission"})(99)
    with pytest.raises(InputError, match=r"minigrid[.]wrappers:ImgObsWrapper"):
        observation_reader(spaces.Dict(parts | {"mission": words}), "Grid-v0")


def test_minigrid_continues_where_it_was_saved() -> None:
    pytest.importorskip("minigrid")
    doorkey = "minigrid:MiniGrid-DoorKey-5x5-v0"
    with pytest.raises(InputError, match=r"minigrid[.]wrappers:ImgObsWrapper\] keeps the image alone"):
        probe(EnvSettings(id=doorkey))
    view = {"wrappers": ["minigrid.wrappers:ImgObsWrapper"]}
    assert probe(EnvSettings(id=doorkey, **view)).image_shapes == [(7, 7, 3)]
    original, copy = make_slice(doorkey, **view), make_slice(doorkey, **view)
    original.reset()
    drive(original, 40)
    assert copy.set_state(original.get_state())[1].all()
    for got, wanted in zip(drive(copy, 40, seed=1), drive(original, 40, seed=1), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("space", "row", "expected"),
    [
        (spaces.Discrete(3, start=-1), [2], 1),
        (spaces.MultiDiscrete([3, 2], start=[10, 20]), [2, 1], [12, 21]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (spaces.Box(-2, 2, (1, 2)), [0.5, -3], [[1.0, -2.0]]),
        (spaces.Box(0, 10, (2,)), [0, 0.2], [5.0, 6.0]),
        (spaces.Box(np.array([0, -np.inf]), np.array([np.inf, np.inf]), dtype=np.float64), [-4, 7], [0.0,
        7.0]),
        (spaces.Box(5, np.inf, (3,)), [-1, 0, 2], [5.0, 6.0, 8.0]),
        (spaces.Box(-np.inf, -5, (3,)), [1, 0, -2], [-5.0, -6.0, -8.0]),
        (spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,)), [0.5, -7], [0.5, -7]),
        (spaces.Box(0, np.finfo(np.float64).max, (2,), np.float64), [0.5, -7], [1.5, 0]),
    ],
)  # fmt: skip
def test_actions(space: spaces.Space, row: list[float], expected: object) -> None:
    written = action_writer(space, "Sample-v0").write(np.array(row, np.float32))
    np.testing.assert_allclose(written, expected)
    assert space.contains(written)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Box(0, 9, (2,), np.int32),
    spaces.Dict({"a": spaces.Discrete(2)})], ids=str)  # fmt: skip
def test_unsupported_actions_are_refused(space: spaces.Space) -> None:
    with pytest.raises(InputError, match="Sample-v0 has the action space"):
        action_writer(space, "Sample-v0")


def test_states_are_plain_arrays() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 4), np.float32)}
    for key, value in unpack_arrays(pack_arrays(arrays)).items():
        np.testing.assert_array_equal(value, arrays[key])
        assert value.dtype == arrays[key].dtype
    with pytest.raises(TypeError, match="plain numbers"):
        pack_arrays({"a": np.array([object()])})
