"""The state plane: numbers that are the policy's own, pictures that can be drawn from the file alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from parallel_ppo.algorithms.normalisers import EPSILON
from parallel_ppo.commands import train
from parallel_ppo.evaluation.loaded_policy import load_subject
from parallel_ppo.evaluation.plane import PLANES, Mind
from parallel_ppo.evaluation.policy_files import load
from parallel_ppo.reports.plane_plot import read_plane
from tests.conftest import command

SHORT = ["--num-envs", "8", "--n-steps", "32", "--batch-size", "64", "--total-timesteps", "512", "--quiet"]


@pytest.fixture(scope="module", params=["Pendulum-v1", "MountainCar-v0"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plane") / "run"
    chosen = ["--env", request.param, "--set", "training.normalize_observations=true", *SHORT]
    assert train.train_sequential([*chosen, "--output-dir", str(directory)]) == 0
    return directory


def test_pictures_and_numbers(run: Path) -> None:
    outcome = command("tools/state_plane.py", "--checkpoint", str(run), "--size", "9", "--trust-checkpoint")
    assert outcome.code == 0, outcome.err
    assert {"plane.png", "plane-dark.png", "plane.json"} <= {path.name for path in run.iterdir()}
    content = read_plane(run / "plane.json")
    actions, path = np.array(content["actions"]), np.array(content["trajectory"])
    assert actions.shape == np.array(content["value"]).shape == (9, 9)
    assert path.shape == (200, 4)
    if content["env_id"] == "Pendulum-v1":
        assert np.abs(actions).max() <= 2
    else:
        assert set(actions.reshape(-1)) <= {0, 1, 2} and (path[:, 3] == -1).all()


@pytest.mark.parametrize("env_id", PLANES)
def test_a_state_survives_the_way_to_an_observation_and_back(env_id: str) -> None:
    plane = PLANES[env_id]
    x, y = plane.horizontal.low * 0.3, plane.vertical.high * 0.4
    row = np.array(plane.observation(np.array(x), np.array(y)))
    np.testing.assert_allclose(plane.state(row), (x, y), rtol=1e-9)


def test_the_normaliser_is_stored_with_the_weights_and_frozen(run: Path) -> None:
    """Weights alone are enough: what they see is scaled as at the end of training, and looking at them changes nothing."""
    weights, _ = load(run / "checkpoints" / "ppo_sequential_final.safetensors", trust=True)
    count, mean = weights.arrays["observations.count"], weights.arrays["observations.mean"]
    assert count == 512 and mean.shape == weights.spec.vector_shape
    arguments = train.argparse.Namespace(
        checkpoint=run, env=None, seed=0, deterministic=True, quiet=True, trust_checkpoint=True
    )
    subject = load_subject(arguments)
    np.testing.assert_allclose(subject.filled.observation_mean, mean, rtol=1e-6)
    deviation = np.sqrt(weights.arrays["observations.squares"] / count + EPSILON)
    np.testing.assert_allclose(1 / subject.filled.observation_scale, deviation, rtol=1e-4)
    mind, row = Mind(subject), mean.astype(np.float32)[None]
    first = mind.think(row)
    mind.think(row + 100)
    for before, after in zip(first, mind.think(row), strict=True):
        np.testing.assert_array_equal(before, after)


def test_other_environments_are_refused_in_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert train.train_sequential(["--env", "CartPole-v1", *SHORT, "--output-dir", str(directory)]) == 0
    outcome = command("tools/state_plane.py", "--checkpoint", str(directory))
    assert outcome.code == 2
    assert (
        outcome.err
        == "error: CartPole-v1: has no state plane to draw; known are Pendulum-v1, MountainCar-v0\n"
    )


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    from parallel_ppo.exits import InputError

    for text in ("{", json.dumps([1]), json.dumps({"env_id": "x"})):
        (tmp_path / "plane.json").write_text(text)
        with pytest.raises(InputError, match=r"plane\.json"):
            read_plane(tmp_path / "plane.json")
