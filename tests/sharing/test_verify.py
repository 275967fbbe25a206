"""A shared folder can be checked: trained again it gives the same hashes, and what was changed is found
out.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import numpy as safetensors

from parallel_ppo.evaluation.policy_files import load
from parallel_ppo.exits import InputError
from parallel_ppo.sharing.command import push, verify
from parallel_ppo.sharing.folder import _arithmetic, _hashes
from parallel_ppo.sharing.verify import Claim, compare
from parallel_ppo.storage.array_files import read_metadata
from tests.conftest import small_settings
from tests.sharing.conftest import REPO

HERE = {"cpu": "A", "torch": "2.13", "numpy": "1.26", "procgen-mirror": "0.10.7"}


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """As someone would who also changes the checksum."""
    (folder / name).write_bytes(data)
    path = folder / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(provenance))


def change_policy(folder: Path, change: Any) -> None:
    path = folder / "policy.safetensors"
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = safetensors.load(data)
    change(arrays, metadata)
    rewrite(folder, path.name, safetensors.save(arrays, metadata))


# --- the folder ---------------------------------------------------------------------------------------------


def test_the_folder_holds_what_others_need_and_nothing_of_the_machine(
    pristine: Path, shared_run: Path
) -> None:
    names = {path.name for path in pristine.iterdir()}
    assert names == {
        "README.md",
        "config.yaml",
        "evaluation.json",
        "hashes.txt",
        "policy.safetensors",
        "provenance.json",
    }
    metrics = [json.loads(line) for line in (shared_run / "metrics.jsonl").read_text().splitlines()]
    assert (pristine / "hashes.txt").read_text().split() == [record["policy_sha256"] for record in metrics]
    weights, original = load(pristine)[0], load(shared_run)[0]
    assert weights.arrays.keys() == original.arrays.keys()
    assert all(np.array_equal(weights.arrays[name], original.arrays[name]) for name in weights.arrays)
    assert "signature" not in read_metadata(weights.path), "everyone could use it with another module"
    for path in pristine.iterdir():
        assert str(shared_run.parent).encode() not in path.read_bytes()
        assert b"master_addr: 10." not in path.read_bytes()


def test_the_card_has_what_the_hub_reads_and_what_a_reader_asks(pristine: Path) -> None:
    _, header, text = (pristine / "README.md").read_text().split("---\n", 2)
    (model,) = yaml.safe_load(header)["model-index"]
    (result,) = model["results"]
    assert model["name"] == "ppo-cartpole" and result["dataset"]["type"] == "CartPole-v1"
    assert result["task"]["type"] == "reinforcement-learning"
    returns = [
        e["return"]
        for e in json.loads((pristine / "evaluation.json").read_text())["levels"]["train"]["episodes"]
    ]
    (metric,) = result["metrics"]
    assert (
        metric["type"] == "mean_reward"
        and metric["value"] == f"{np.mean(returns):.2f} +/- {np.std(returns):.2f}"
    )
    provenance = json.loads((pristine / "provenance.json").read_text())
    for part in (
        provenance["policy_sha256"],
        "| seed | 3 |",
        "--env CartPole-v1",
        "batch_size: 64",
        f"hub:{REPO}",
    ):
        assert part in text, part
    assert provenance["git_commit"] is None or provenance["git_commit"] in text
    assert provenance["reproducible"] and provenance["arithmetic"][0]["torch"]


def test_the_card_is_of_episodes_that_push_played(pristine: Path, shared_run: Path) -> None:
    """The run holds the result of a shorter evaluation of the same policy."""
    shorter = json.loads((shared_run / "evaluation.json").read_text())
    shown = json.loads((pristine / "evaluation.json").read_text())
    assert shorter["policy_sha256"] == shown["policy_sha256"] and shorter["max_steps"] == 7
    assert (shown["num_episodes"], shown["max_steps"], shown["seed"]) == (100, 100_000, 0)
    assert "100 episodes of at most 100,000 steps" in (pristine / "README.md").read_text()


def test_a_policy_that_nobody_could_check_is_not_shared(
    shared_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "shared")
    weights = shared_run / "checkpoints" / "step_0"
    assert push([str(weights), "--repo", REPO, "--dry-run", target]) == 2
    assert "was not trained yet" in capsys.readouterr().err
    assert push([str(shared_run), "--repo", "no-slash", "--dry-run", target]) == 2
    assert "expected user/name" in capsys.readouterr().err
    assert push([str(shared_run), "--repo", f"{REPO}@main", "--dry-run", target]) == 2
    assert not (tmp_path / "shared").exists()


def test_odd_sessions_of_a_strangers_run_json_do_not_reach_the_folder() -> None:
    right = {"first_iteration": 0, "arithmetic": HERE}
    odd: list[Any] = [
        3,
        {"first_iteration": "x", "arithmetic": HERE},
        {"arithmetic": [1]},
        {"arithmetic": None},
    ]
    assert _arithmetic({"sessions": [*odd, right, right, right | {"first_iteration": 9}]}, 4) == [HERE]


def test_a_linked_folder_in_a_strangers_run_is_not_written(
    shared_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, victim = shutil.copytree(shared_run, tmp_path / "run", symlinks=True), tmp_path / "victim"
    victim.mkdir()
    (run / "shared").symlink_to(victim)
    assert push([str(run), "--repo", REPO, "--dry-run", "--skip-play", "--quiet"]) == 2
    assert "shared is a link" in capsys.readouterr().err and not any(victim.iterdir())


def test_hashes_are_not_counted_before_they_are_found(tmp_path: Path) -> None:
    """The number of iterations comes from the weights, which may say anything."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "policy_sha256": "0" * 64}) + "\n")
    with pytest.raises(InputError, match="no policy_sha256 of iteration 2"):
        _hashes(tmp_path / "metrics.jsonl", 10**15)


# --- verify -------------------------------------------------------------------------------------------------


def test_a_shared_policy_is_the_same_when_trained_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify([str(folder), "--iterations", "4"]) == 0
    assert capsys.readouterr().out.startswith(
        "the same: 4 of 4 iterations have the same hash; this is the policy itself"
    )
    assert verify([str(folder), "--iterations", "5"]) == 2
    assert "trained for 4" in capsys.readouterr().err


def test_a_changed_setting_is_found_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "config.yaml").read_text()
    changed = text.replace("gamma: 0.98", "gamma: 0.97")
    assert changed != text
    (folder / "config.yaml").write_text(changed)
    assert verify([str(folder), "--iterations", "2"]) == 2
    assert "config.yaml: was changed after it was shared" in capsys.readouterr().err
    rewrite(folder, "config.yaml", changed.encode())
    assert verify([str(folder), "--iterations", "2"]) == 2
    assert "training.gamma" in capsys.readouterr().err

    def also_there(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
        metadata["settings"] = metadata["settings"].replace('"gamma": 0.98', '"gamma": 0.97')

    change_policy(folder, also_there)
    assert verify([str(folder), "--iterations", "2"]) == 1
    assert capsys.readouterr().out.startswith("different: from iteration 1 on")


def test_tampered_weights_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
        arrays["action_head.bias"] = arrays["action_head.bias"] + 1

    provenance = (folder / "provenance.json").read_bytes()
    change_policy(folder, change)
    assert verify([str(folder)]) == 2
    assert "is not the policy that hashes.txt names" in capsys.readouterr().err
    (folder / "provenance.json").write_bytes(provenance)
    assert verify([str(folder)]) == 2
    assert "was changed after it was shared" in capsys.readouterr().err
    with pytest.raises(InputError, match="was changed after it was shared"):
        load(folder)  # also by whoever only wants to use it


def test_a_damaged_folder_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify([str(tmp_path)]) == 2
    whole = json.loads((folder / "provenance.json").read_text())
    for damage in ("{", "[]", "{}", '{"files": 3}', json.dumps({"files": {"config.yaml": 1}})):
        (folder / "provenance.json").write_text(damage)
        assert verify([str(folder)]) == 2
    del whole["reproducible"]
    (folder / "provenance.json").write_text(json.dumps(whole))
    assert verify([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 7 and "Traceback" not in error


# --- the verdict --------------------------------------------------------------------------------------------


def claim(arithmetic: list[dict[str, str]], reproducible: bool = True) -> Claim:
    from parallel_ppo.sharing.folder import Shared

    provenance = {"arithmetic": arithmetic, "reproducible": reproducible}
    return Claim(Shared(provenance, ["a", "b", "c"]), small_settings(), (4,), 2)


@pytest.mark.parametrize(
    ("there", "found", "code", "says"),
    [
        ([HERE], ["a", "b"], 0, "the same: 2 of 2"),
        ([HERE | {"cpu": "B"}], ["a", "b"], 0, "also with cpu B there, A here"),
        ([HERE], ["a", "x"], 1, "different: from iteration 2"),
        ([HERE | {"cpu": "B"}], ["a", "x"], 8, "not comparable: .*cpu B there, A here"),
        ([HERE, HERE | {"torch": "2.12"}], ["x", "x"], 8, "not comparable: .*torch 2.12 there, 2.13 here"),
        ([HERE | {"numpy": "1.25"}], ["x", "x"], 8, "not comparable: .*numpy 1.25 there"),
        ([HERE | {"mujoco": "3"}], ["x", "x"], 1, "different"),
        ([{"procgen": "0.10.7"}], ["x", "x"], 8, r".*procgen 0.10.7 there, 0.10.7 \(mirror\) here"),
        ([HERE | {"procgen-mirror": "0.10.7"}], ["x", "x"], 1, "different"),
        ([], ["x", "x"], 8, "not comparable: .*does not name"),
        ([HERE | {"arithmetic": "2"}], ["x", "x"], 8, "not comparable: .*arithmetic 2 there, 1 here"),
    ],
)
def test_only_the_same_cpu_and_libraries_can_say_different(
    there: list[dict[str, str]], found: list[str], code: int, says: str
) -> None:
    import re

    verdict = compare(claim(there), found, HERE)
    assert verdict.code == code and re.match(f".*{says}", verdict.text), verdict


@pytest.mark.parametrize(
    ("there", "code"),
    [
        ({"cpu": "B", "numpy": "2.4"}, 1),
        ({"cpu": "B", "arithmetic": "1"}, 8),
        ({"procgen-mirror": "0"}, 8),
        ({"NumPy's rules": "2"}, 8),
    ],
)
def test_a_portable_run_is_compared_on_any_machine(there: dict[str, str], code: int) -> None:
    here = HERE | {"arithmetic": "2", "portable": "true", "NumPy's rules": "1"}
    verdict = compare(claim([here | there]), ["a", "x"], here)
    assert verdict.code == code and ("no CPU causes" in verdict.text) == (code == 1)
    assert compare(claim([here | there]), ["a", "b"], here).code == 0


def test_a_run_that_was_not_exact_is_not_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reproducible": False}))
    assert verify([str(folder)]) == 8
    assert capsys.readouterr().out.startswith("not comparable: the run is marked as not reproducible")
