import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_ppo.envs.families import probe
from parallel_ppo.evaluation import policy_files
from parallel_ppo.exits import InputError
from parallel_ppo.features.moments import Moments
from tests.conftest import small_settings
from tests.evaluation.weight_files import contents, write_weights


def load_all(path: Path, **options: bool) -> policy_files.Filled:
    loaded, _ = policy_files.load(path, **options)
    return policy_files.fill(loaded, loaded.settings, probe(loaded.settings))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    settings = small_settings()
    filled = load_all(write_weights(tmp_path / "a.safetensors", settings))
    arrays, _ = contents(settings)
    assert set(np.concatenate([array.ravel() for array in arrays.values()])) <= set(filled.parameters) | {0}
    loaded, lines = policy_files.load(tmp_path / "a.safetensors")
    assert loaded.settings == settings and loaded.env_steps == 256 and lines == []


def test_the_normaliser_is_that_of_training(tmp_path: Path) -> None:
    settings = small_settings(training__normalize_observations=True)
    moments = Moments.of(np.random.default_rng(0).normal(3, 2, (50, 4)))
    arrays = {
        "observations.count": np.array(moments.num),
        "observations.mean": moments.mean,
        "observations.squares": moments.squares,
    }
    filled = load_all(write_weights(tmp_path / "a.safetensors", settings, arrays))
    np.testing.assert_allclose(filled.observation_mean, moments.mean, rtol=1e-6)
    np.testing.assert_allclose(filled.observation_scale, 1 / np.sqrt(moments.variance), rtol=1e-6)
    with pytest.raises(InputError, match=r"has no observations\.count"):
        load_all(write_weights(tmp_path / "b.safetensors", settings))


SPOILT = {
    "missing": ({"value_head.bias": None}, r"has no value_head\.bias"),
    "shape": ({"value_head.bias": np.zeros(2, np.float32)}, r"value_head\.bias is float32 of shape \(2,\)"),
    "type": ({"value_head.bias": np.zeros(1, np.float64)}, r"value_head\.bias is float64"),
    "nan": ({"value_head.bias": np.full(1, np.nan, np.float32)}, "NaN or infinity"),
    "extra": ({"backdoor": np.zeros(1, np.float32)}, "holds backdoor"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_arrays_must_be_exactly_those_of_the_network(tmp_path: Path, name: str) -> None:
    arrays, message = SPOILT[name]
    with pytest.raises(InputError, match=message):
        load_all(write_weights(tmp_path / "a.safetensors", small_settings(), arrays))


DESCRIPTIONS = {
    "foreign": ({"format": "pt"}, "holds no policy of this program"),
    "no json": ({"settings": "{"}, "cannot be read"),
    "no env": ({"settings": "{}"}, "give an --env that fits"),
    "a list": ({"settings": "[1]"}, "cannot be read"),
    "settings of the future": ({"settings": '{"env": {"id": "CartPole-v1", "gravity": 1}}'}, "env.gravity"),
    "spec": ({"spec": "[1]"}, "cannot be read"),
    "impossible spec": (
        {"spec": '[[-1], "float32", ["categorical", [2], [], []], true, 1]'},
        "cannot be read",
    ),
    "steps": ({"env_steps": "many"}, "cannot be read"),
    "huge steps": ({"env_steps": str(10**30)}, "cannot be read"),
}


IMPOSSIBLE_SPECS: dict[str, dict[str, Any]] = {
    "no shape": {"observation_shape": []},
    "two dimensions": {"observation_shape": [4, 4]},
    "a huge image": {"observation_shape": [65536, 65536, 3]},
    "no actions": {"action": ["categorical", [], [], []]},
    "unknown actions": {"action": ["poisson", [2], [], []]},
    "no sizes": {"action": ["gaussian", [], [-1.0], [1.0]]},
    "no bounds": {"action": ["gaussian", [2], [], []]},
    "bounds that are no numbers": {"action": ["gaussian", [1], [float("nan")], [1.0]]},
    "another type": {"observation_dtype": "object"},
    "a part outside": {"parts": [[False, [400], 0]], "observation_dtype": "uint8"},
}


@pytest.mark.parametrize("name", IMPOSSIBLE_SPECS)
def test_no_network_is_made_for_impossible_spaces(tmp_path: Path, name: str) -> None:
    spec = json.dumps(
        json.loads(contents(small_settings())[1]["spec"]) | {"spaces": ""} | IMPOSSIBLE_SPECS[name]
    )
    file = write_weights(tmp_path / "a.safetensors", small_settings(), spec=spec)
    with pytest.raises(InputError, match="its description cannot be read"):
        policy_files.load(file)


@pytest.mark.parametrize("network", ["impala", "nature", "small_image"])
def test_a_network_for_images_is_refused_for_vectors(tmp_path: Path, network: str) -> None:
    described = json.loads(contents(small_settings())[1]["settings"])
    described["training"]["policy"] = network
    file = write_weights(tmp_path / "a.safetensors", small_settings(), settings=json.dumps(described))
    with pytest.raises(InputError, match="cannot read the vectors of CartPole-v1"):
        policy_files.load(file)


def test_an_automatic_network_is_that_of_the_observations(tmp_path: Path) -> None:
    described = json.loads(contents(small_settings())[1]["settings"])
    described["training"]["policy"] = "auto"
    file = write_weights(tmp_path / "a.safetensors", small_settings(), settings=json.dumps(described))
    loaded, _ = policy_files.load(file)
    assert policy_files.fill(loaded, loaded.settings, loaded.spec).policy_sha256


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_are_checked(tmp_path: Path, name: str) -> None:
    metadata, message = DESCRIPTIONS[name]
    with pytest.raises(InputError, match=message) as raised:
        load_all(write_weights(tmp_path / "a.safetensors", small_settings(), **metadata))
    assert "\n" not in str(raised.value)


def test_a_huge_network_is_refused_before_memory_is_spent(tmp_path: Path) -> None:
    _, metadata = contents(small_settings())
    described = json.loads(metadata["settings"])
    described["training"]["hidden_sizes"] = [4096, 4096]
    with pytest.raises(InputError, match="its network needs float32 of shape"):
        load_all(write_weights(tmp_path / "a.safetensors", small_settings(), settings=json.dumps(described)))


class Bomb:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("exploded"),)


def test_damaged_files_and_pickles_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = write_weights(tmp_path / "a.safetensors", small_settings()).read_bytes()
    cases = {
        "torn.safetensors": whole[: len(whole) // 2],
        "empty.safetensors": b"",
        "noise.safetensors": np.random.default_rng(0).bytes(1000),
        "pickle.safetensors": pickle.dumps(Bomb()),
        "old.pt": pickle.dumps(Bomb()),
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError) as raised:
            load_all(tmp_path / name)
        assert name in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(InputError, match="no such file"):
        load_all(tmp_path / "nothing")


def test_a_pt_name_means_the_safetensors_beside_it(tmp_path: Path) -> None:
    write_weights(tmp_path / "ppo_sequential_final.safetensors", small_settings())
    loaded, lines = policy_files.load(tmp_path / "ppo_sequential_final.pt")
    assert loaded.path.suffix == ".safetensors" and "using" in lines[0]


def test_a_run_directory_means_its_latest_whole_checkpoint(tmp_path: Path) -> None:
    settings, checkpoints = small_settings(), tmp_path / "run" / "checkpoints"
    for step in (0, 100, 200):
        write_weights(checkpoints / f"step_{step}" / "policy.safetensors", settings, env_steps=str(step))
    (checkpoints / "latest").symlink_to("step_200")
    (checkpoints / "best").symlink_to("step_100")
    for path, steps in ((tmp_path / "run", 200), (checkpoints, 200), (checkpoints / "best", 100)):
        loaded, lines = policy_files.load(path)
        assert loaded.env_steps == steps and not lines
        assert policy_files.run_root(loaded.path) == tmp_path / "run"
    (checkpoints / "step_200" / "policy.safetensors").write_bytes(b"torn")
    loaded, lines = policy_files.load(tmp_path / "run")
    assert loaded.env_steps == 100 and "instead" in lines[0]
    with pytest.raises(InputError, match="holds no weights"):
        policy_files.load(tmp_path)


def test_a_link_to_another_run_does_not_lead_results_there(tmp_path: Path) -> None:
    settings, runs = small_settings(), (tmp_path / "run", tmp_path / "victim")
    for run in runs:
        write_weights(run / "checkpoints" / "step_100" / "policy.safetensors", settings)
    victim = runs[1] / "checkpoints" / "step_100"
    for name in ("step_300", "latest"):
        (runs[0] / "checkpoints" / name).symlink_to(victim)
        loaded, _ = policy_files.load(runs[0])
        assert policy_files.run_root(loaded.path) == runs[0]


def test_a_loop_of_links_is_one_line(tmp_path: Path) -> None:
    weights = tmp_path / "checkpoints" / "step_1" / "policy.safetensors"
    weights.parent.mkdir(parents=True)
    weights.symlink_to(weights.name)
    with pytest.raises(InputError, match="cannot be read"):
        policy_files.load(tmp_path)


def test_the_manifest_is_believed_more_than_the_file(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "policy.safetensors", small_settings())
    entry = {"bytes": file.stat().st_size, "sha256": "0" * 64}
    # `adam_steps` is the name that earlier versions wrote.
    counters = dict.fromkeys(("iteration", "env_steps", "adam_steps", "episodes", "worker_restarts"), 0)
    files = {
        name: entry for name in ("policy.safetensors", "training.safetensors", "environments.safetensors")
    }
    learned = {"policy_sha256": "", "learning": {}, "environments_hmac": None}
    manifest = {"format": 1, "counters": counters, "files": files, **learned}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="checksum"):
        policy_files.load(tmp_path)


def test_weights_that_do_not_fit_the_environment(tmp_path: Path) -> None:
    loaded, _ = policy_files.load(write_weights(tmp_path / "a.safetensors", small_settings()))
    other = small_settings("Acrobot-v1")
    with pytest.raises(InputError, match="give an --env that fits"):
        policy_files.fill(loaded, other, probe(other))
