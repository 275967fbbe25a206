"""A network of a user's own: trained exactly, resumed, evaluated; or refused in one line before anything
is written.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from parallel_ppo.commands.evaluate import evaluate
from parallel_ppo.commands.train import train_parallel, train_sequential
from parallel_ppo.envs.procgen import SPEC
from parallel_ppo.policies.actor import check_network
from parallel_ppo.policies.parameters import initialize, num_flat, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.training.planning import resolve_kernels, resolve_policy
from tests.conftest import ROOT, small_settings
from tests.policies.test_policy import VECTOR

OWN = "tests.policies.own_networks"
SHORT = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--quiet"]


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.multiprocess
def test_the_same_bits_for_one_and_two_workers_and_after_a_resume(tmp_path: Path) -> None:
    flags = [*SHORT, "--policy", f"{OWN}:Fine"]
    one, two, again = (str(tmp_path / name) for name in ("one", "two", "again"))
    assert (
        train_sequential([*flags, "--num-threads", "1", "--total-timesteps", "1024", "--output-dir", one])
        == 0
    )
    assert (
        train_parallel([*flags, "--num-workers", "2", "--total-timesteps", "1024", "--output-dir", two]) == 0
    )
    assert (
        train_sequential([*flags, "--num-threads", "1", "--total-timesteps", "512", "--output-dir", again])
        == 0
    )
    assert train_sequential(["--resume", again, "--total-timesteps", "1024", "--quiet"]) == 0
    hashes = {summary(Path(run))["policy_sha256"] for run in (one, two, again)}
    assert len(hashes) == 1
    assert evaluate([one, "--num-episodes", "8", "--num-workers", "1", "--quiet"]) == 0


def test_initial_weights_are_the_constructors_and_keyed_by_the_seed() -> None:
    settings = small_settings(policy=f"{OWN}:Fine")
    policy = Policy(settings, VECTOR)
    flats = [torch.zeros(num_flat(policy)) for _ in range(3)]
    for flat, seed in zip(flats, (1, 1, 2), strict=True):
        torch.rand(seed)  # what was drawn before does not matter
        initialize(policy, flat, seed)
    assert torch.equal(flats[0], flats[1])
    assert not torch.equal(flats[0], flats[2])
    found = views(policy, flats[0])
    assert (found["trunk.layers.1.weight"] == 1).all(), "a norm starts as it was made"
    square = found["trunk.layers.3.weight"] @ found["trunk.layers.3.weight"].T
    assert torch.allclose(square, torch.eye(10), atol=1e-5), "the constructor's own choice"
    assert found["trunk.scale"].min() > 0
    assert policy.action_head.in_features == 10, "found by a dry run"


def test_the_example_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])
    settings = small_settings("coinrun", "small_resnet:SmallResNet")
    settings = resolve_kernels(resolve_policy(settings, SPEC), SPEC)
    assert settings.training.kernels == "torch"
    policy = Policy(settings, SPEC)
    check_network(settings, SPEC, policy)
    assert policy.trunk.num_features == 128


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Dropping", "gives the same observations different features each time"),
        ("Running", "changes its buffers when it runs"),
        ("MixingRows", "gives an observation different features in another batch"),
        ("Unseeded", "draws different initial weights each time it is made"),
        ("RandomBuffer", "has buffers with random values"),
        ("Unused", "does not use its parameter spare.weight"),
        ("Frozen", "has the frozen parameter layers.0.bias"),
        ("Hidden", "has no parameters"),
        ("Failing", "(4) cannot be made (RuntimeError: no thanks)"),
        (
            "Flat",
            "returned torch.float32 (2,); expected a float32 tensor (batch, features)",
        ),
        ("NOT_A_NETWORK", "is not a class derived from torch.nn.Module"),
        ("Missing", "has no 'Missing'"),
    ],
)
def test_what_cannot_be_trained_exactly_is_refused(
    name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train_sequential([*SHORT, "--policy", f"{OWN}:{name}", "--output-dir", str(run)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0 and told.startswith("error: --policy: ") and line in told, told
    assert not run.exists()


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("nowhere_to_be_found:Net", "cannot import 'nowhere_to_be_found'"),
        (
            "rubbish",
            "expected auto, impala, impoola, nature, small_image, mlp, or your own network as module:Class",
        ),
        ("module:", "expected auto"),
    ],
)
def test_names_that_lead_nowhere(policy: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_sequential([*SHORT, "--policy", policy]) == 2
    assert line in capsys.readouterr().err


def test_a_stranger_s_weights_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    flags = [*SHORT, "--policy", f"{OWN}:Fine", "--total-timesteps", "256", "--num-threads", "1"]
    assert train_sequential([*flags, "--output-dir", str(tmp_path / "run")]) == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    asked = [str(tmp_path / "run"), "--num-episodes", "8", "--num-workers", "1", "--quiet"]
    assert evaluate(asked) == 2
    assert f"sets training.policy to '{OWN}:Fine', which can run code" in capsys.readouterr().err
    assert evaluate([*asked, "--trust-checkpoint"]) == 0
