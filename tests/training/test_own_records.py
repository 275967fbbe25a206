"""What environments and callbacks report is recorded; runs start from other weights; `best` by evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as safetensors

from parallel_ppo.commands.train import train_sequential
from tests.conftest import ROOT, train_here
from tests.envs import reporting

SHORT = ["--num-envs", "4", "--n-steps", "16", "--batch-size", "32", "--total-timesteps", "512",
         "--set", "logging.tensorboard=false", "--set", "training.hidden_sizes=[16, 16]"]  # fmt: skip
REPORTING = [*SHORT, "--env", "tests.envs.reporting:Reporting", "--set", "env.info_keys=[angle, nothing]"]
SOURCE = str(ROOT / "tests" / "fixtures" / "c999f13" / "ppo")


def test_masks_success_and_info_are_recorded(tmp_path: Path) -> None:
    run = train_here(tmp_path / "run", *REPORTING)
    assert "action_masks: true" in (tmp_path / "run" / "config.yaml").read_text()
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    assert episodes and all(one["success"] == (one["length"] == reporting.LIMIT) for one in episodes)
    assert all(abs(one["info/angle"]) < 1 and one["info/nothing"] is None for one in episodes)
    for record in run.metrics:
        own = [one for one in episodes if one["iteration"] == record["iteration"]]
        if own:
            assert record["success_rate"] == np.mean([one["success"] for one in own])
            assert record["info/angle"] == np.mean([one["info/angle"] for one in own])


def test_a_run_starts_with_the_parameters_of_another(tmp_path: Path) -> None:
    train_here(tmp_path / "run", *REPORTING, "--init-from", SOURCE, "--set", "logging.keep_checkpoints=9",
               "--set", "training.normalize_observations=false")  # fmt: skip
    start = tmp_path / "run" / "checkpoints" / "step_0" / "policy.safetensors"
    [source] = Path(SOURCE, "checkpoints").glob("step_*/policy.safetensors")
    expected = safetensors.load_file(source)
    assert {name: array.tolist() for name, array in safetensors.load_file(start).items()} == {
        name: array.tolist() for name, array in expected.items()
    }


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--set", "training.hidden_sizes=[32, 32]"], "trunk.layers.0.weight is float32 of shape (16, 4)"),
        (["--env", "Acrobot-v1"], "its policy reads 4 float32 observations and categorical actions (2)"),
        (["--set", "training.normalize_observations=true"], "has no observations.count"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    flags: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = train_sequential([*SHORT, "--env", "CartPole-v1", *flags, "--init-from", SOURCE,
                             "--output-dir", str(tmp_path / "run")])  # fmt: skip
    error = capsys.readouterr().err
    assert code == 2 and line in error and "--init-from" in error
    assert not (tmp_path / "run").exists()


def test_best_is_the_checkpoint_of_the_best_evaluation(tmp_path: Path) -> None:
    run = train_here(tmp_path / "run", *REPORTING, "--set", "evaluation.interval=1",
                     "--set", "evaluation.num_episodes=3", "--set", "evaluation.chooses_best=true")  # fmt: skip
    returns = {record["steps_global"]: record["eval_train_return"] for record in run.metrics}
    best = (tmp_path / "run" / "checkpoints" / "best").resolve().name
    assert best == f"step_{max(returns, key=lambda steps: (returns[steps], steps))}"
    assert run.summary["best_return"] == max(returns.values())


@pytest.mark.parametrize(("name", "line"), [("missing", "has no 'missing'"), ("LIMIT", "LIMIT failed at 1")])
def test_a_schedule_that_cannot_be_used_is_one_line(
    name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"training.learning_rate_schedule=tests.envs.reporting:{name}"
    assert train_sequential([*SHORT, "--env", "CartPole-v1", "--output-dir", str(tmp_path / "run"), "--quiet",
                             "--set", flag]) == 2  # fmt: skip
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
