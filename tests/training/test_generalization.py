"""Evaluation while training: seen in the metrics, and nowhere else."""

import pytest

from parallel_ppo.settings.layers import load_settings
from tests.conftest import train

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SHAPE = [
    "--num-envs",
    "16",
    "--n-steps",
    "16",
    "--batch-size",
    "64",
    "--total-timesteps",
    "512",
    "--seed",
    "7",
]
PROCGEN = ["--env", "coinrun", "--policy", "nature", "--n-epochs", "1", "--num-levels", "5", *SHAPE]
EVALUATED = [
    "--set",
    "evaluation.interval=2",
    "--set",
    "evaluation.num_episodes=10",
    "--set",
    "evaluation.max_steps=25",
]


@pytest.mark.procgen
def test_training_cannot_tell_and_workers_do_not_matter(tmp_path) -> None:
    without = train(tmp_path / "without", *PROCGEN, "--num-workers", "2")
    two = train(tmp_path / "two", *PROCGEN, *EVALUATED, "--num-workers", "2")
    inline = train(tmp_path / "inline", *PROCGEN, *EVALUATED, "--num-threads", "1", script="train_timed.py")
    assert two.learning == inline.learning
    evaluated = two.learning[1]
    columns = {key: evaluated.pop(key) for key in ("eval_train_return", "eval_test_return", "eval_gap")}
    assert columns["eval_gap"] == columns["eval_train_return"] - columns["eval_test_return"]
    assert two.learning[0] == without.learning[0] and evaluated == without.learning[1]
    assert two.summary["policy_sha256"] == without.summary["policy_sha256"]
    assert two.metrics[1]["t_eval"] > 0 and "t_eval" not in two.metrics[0]


def test_without_levels_there_is_no_gap_and_a_resume_may_ask_for_it(tmp_path) -> None:
    run = train(
        tmp_path / "run", "--env", "CartPole-v1", *SHAPE, "--num-threads", "1", script="train_timed.py"
    )
    assert not any("eval" in key for key in run.metrics[-1])
    more = ["--resume", str(tmp_path / "run"), "--total-timesteps", "768", "--set", "evaluation.interval=3"]
    resumed = train(tmp_path / "run", *more, script="train_timed.py")
    assert resumed.metrics[2]["eval_train_return"] > 0 and "eval_gap" not in resumed.metrics[2]


def test_a_changed_setting_changes_the_shape() -> None:
    settings = load_settings(file=None, flags={"env.id": "CartPole-v1"})
    assert (
        settings.sizes.microbatch_sizes != settings.changed("training", policy="mlp").sizes.microbatch_sizes
    )
