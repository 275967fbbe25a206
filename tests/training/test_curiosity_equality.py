"""The contract with curiosity: workers, a killed worker or coordinator and two nodes leave no trace."""

from pathlib import Path

import pytest

from parallel_ppo.commands.train import train_sequential
from parallel_ppo.envs.contract import ReplayCheck
from parallel_ppo.training import planning
from tests.cluster.nodes import Nodes, summary
from tests.conftest import train
from tests.training.test_algorithm_equality import killed_and_resumed

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SHAPE = ["--env", "MountainCar-v0", "--num-envs", "8", "--set", "env.slice_envs=2", "--n-steps", "16",
         "--seed", "7", "--batch-size", "64", "--n-epochs", "2", "--set", "logging.tensorboard=false",
         "--set", "curiosity.warmup_steps=100", "--set", "curiosity.hidden_size=16",
         # Of a slice's four microbatches, one teaches the predictors, one does so in part.
         "--set", "training.lane_samples=4", "--set", "curiosity.update_share=0.4"]  # fmt: skip
HASHES = "policy_sha256", "state_sha256"


@pytest.mark.parametrize("kind", ["rnd", "icm", "ngu"])
def test_every_curiosity_learns_the_same_bits(kind: str, tmp_path: Path) -> None:
    arguments = [*SHAPE, "--curiosity", kind]
    broken = killed_and_resumed(tmp_path / "broken", arguments)
    assert broken.summary["worker_restarts"] >= 1 and broken.summary["bit_exact"]
    steps = ["--total-timesteps", str(broken.summary["env_steps"])]
    whole = train(tmp_path / "whole", *arguments, *steps, "--num-threads", "1", script="train_timed.py")
    assert broken.learning == whole.learning
    with Nodes(2, *arguments, *steps, "--output-dir", str(tmp_path / "nodes")) as nodes:
        assert [code for code, _ in nodes.wait()] == [0, 0]
    for name in HASHES:
        assert broken.summary[name] == whole.summary[name] == summary(tmp_path / "nodes")[name], name


@pytest.mark.parametrize("is_tried", [True, False])
def test_observations_that_never_change_are_refused(
    is_tried: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the trial before anything starts; by the warm-up where that was no answer."""
    if not is_tried:
        monkeypatch.setattr(planning, "check_replay", lambda settings: ReplayCheck())
    name, run = "tests.envs.sample_envs:Chain-v0", tmp_path / "run"
    shape = ["--env", name, "--num-envs", "2", "--n-steps", "8", "--batch-size", "16", "--quiet"]
    chosen = ["--curiosity", "rnd", "--set", "curiosity.warmup_steps=20", "--output-dir", str(run)]
    assert train_sequential([*shape, *chosen]) == 2
    errors = capsys.readouterr().err
    assert f"the observations of {name} cannot be whitened, they do not change" in errors
    assert errors.count("\n") == 1
    assert run.exists() is not is_tried
