"""Evaluation while training: seen in the metrics, and nowhere else."""

from pathlib import Path

import pytest

from parallel_ppo.settings.layers import load_settings
from tests.conftest import train_here

SHAPE = [
    "--num-envs",
    "16",
    "--n-steps",
    "16",
    "--batch-size",
    "64",
    "--n-epochs",
    "1",
    "--seed",
    "7",
    "--total-timesteps",
]
PROCGEN = ["--env", "coinrun", "--policy", "nature", "--num-levels", "5", *SHAPE, "512"]
EVALUATED = ["--set", "evaluation.interval=2", "--set", "evaluation.num_episodes=10",
             "--set", "evaluation.max_steps=25"]  # fmt: skip


@pytest.mark.procgen
def test_training_does_not_depend_on_live_evaluations(tmp_path: Path) -> None:
    """With workers: tests/contract."""
    without = train_here(tmp_path / "without", *PROCGEN)
    run = train_here(tmp_path / "with", *PROCGEN, *EVALUATED)
    evaluated = run.learning[1]
    columns = {key: evaluated.pop(key) for key in ("eval_train_return", "eval_test_return", "eval_gap")}
    assert columns["eval_gap"] == columns["eval_train_return"] - columns["eval_test_return"]
    assert run.learning[0] == without.learning[0] and evaluated == without.learning[1]
    assert run.summary["policy_sha256"] == without.summary["policy_sha256"]
    assert run.metrics[1]["t_eval"] > 0 and "t_eval" not in run.metrics[0]


def test_without_levels_there_is_no_gap_and_a_resume_may_evaluate(tmp_path: Path) -> None:
    run = train_here(tmp_path / "run", "--env", "CartPole-v1", *SHAPE, "512")
    assert not any("eval" in key for key in run.metrics[-1])
    more = ["--resume", str(tmp_path / "run"), "--total-timesteps", "768", "--set", "evaluation.interval=3"]
    resumed = train_here(tmp_path / "run", *more)
    assert resumed.metrics[2]["eval_train_return"] > 0 and "eval_gap" not in resumed.metrics[2]


def test_a_changed_setting_changes_the_sizes() -> None:
    settings = load_settings(file=None, flags={"env.id": "CartPole-v1"})
    changed = settings.changed("training", policy="mlp")
    assert settings.sizes.microbatch_sizes != changed.sizes.microbatch_sizes
