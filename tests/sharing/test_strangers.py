"""No command imports what a stranger's files name, unless it is told to trust them."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import numpy as safetensors

from parallel_ppo.commands.evaluate import evaluate
from parallel_ppo.commands.play import play_episodes
from parallel_ppo.commands.train import train_parallel, train_sequential
from parallel_ppo.evaluation import hub
from parallel_ppo.exits import InputError
from parallel_ppo.library.policy import load
from parallel_ppo.reports import compare_command, plot_command
from parallel_ppo.sharing.command import push, verify
from tests.sharing.conftest import REPO
from tests.sharing.test_verify import rewrite

MODULE = """
import gymnasium
open("imported", "w").close()
gymnasium.register("Evil-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=500)
Wrapper = Trunk = callback = None
"""
ASKS: list[tuple[str, str, Any]] = [
    ("env", "id", "stranger:Evil-v0"),
    ("env", "wrappers", ["stranger:Wrapper"]),
    ("env", "kwargs", {"sutton_barto_reward": True}),
    ("env", "kwargs.sutton_barto_reward", True),
    ("training", "policy", "stranger:Trunk"),
    ("training", "learning_rate_schedule", "stranger:callback"),
    ("logging", "callbacks", ["stranger:callback"]),
]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another user's home, with the stranger's module in the working folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another-user"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return tmp_path


def ask_in_weights(path: Path, section: str, key: str, value: Any) -> None:
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    settings = json.loads(metadata["settings"])
    settings[section][key] = value
    path.write_bytes(safetensors.save(safetensors.load(data), metadata | {"settings": json.dumps(settings)}))


def ask_in_config(path: Path, section: str, key: str, value: Any) -> None:
    settings = yaml.safe_load(path.read_text())
    settings[section][key] = value
    path.write_text(yaml.safe_dump(settings))


def strange_run(source: Path, target: Path, section: str, key: str, value: Any) -> Path:
    """Weights without a manifest, which the stranger could as well have made to fit."""
    shutil.copytree(source, target, symlinks=True)
    ask_in_config(target / "config.yaml", section, key, value)
    for step in (target / "checkpoints").glob("step_*"):
        (step / "manifest.json").unlink()
        ask_in_weights(step / "policy.safetensors", section, key, value)
    return target


LOADERS: dict[str, Callable[[str], int]] = {
    "evaluate": lambda run: evaluate([run, "--num-episodes", "1", "--quiet"]),
    "play": lambda run: play_episodes([run, "--quiet"]),
    "push": lambda run: push([run, "--repo", REPO, "--dry-run", "shared", "--skip-play"]),
}
TRAINERS: dict[str, Callable[[str], int]] = {
    "resume": lambda run: train_parallel(["--resume", run, "--total-timesteps", "1024", "--quiet"]),
    "resume in one process": lambda run: train_sequential(["--resume", run, "--quiet"]),
}
READERS: dict[str, Callable[[str], int]] = {
    "plot": lambda run: plot_command.main([run, "--output-dir", "plots", "--quiet"]),
    "compare": lambda run: compare_command.main(
        ["--sequential", run, "--parallel", run, "--output-dir", "compared", "--quiet"]
    ),
}


def key_of(ask: tuple[str, str, Any]) -> str:
    return f"{ask[0]}.{ask[1].partition('.')[0]}"


CASES = [
    pytest.param(name, ask, id=f"{name}: {ask[1]}")
    for name in (*LOADERS, *TRAINERS)
    for ask in ASKS
    if name in TRAINERS or ask[1] != "callbacks"
]


@pytest.mark.parametrize(("name", "ask"), CASES)
def test_what_a_strangers_run_names_is_not_imported(
    shared_run: Path, elsewhere: Path, name: str, ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = strange_run(shared_run, elsewhere / "run", *ask)
    assert (LOADERS | TRAINERS)[name](str(run)) == 2
    error = capsys.readouterr().err
    assert key_of(ask) in error and "--trust-checkpoint" in error and error.count("\n") == 1
    assert not (elsewhere / "imported").exists()


@pytest.mark.parametrize("name", READERS)
def test_reports_import_nothing_that_a_run_names(shared_run: Path, elsewhere: Path, name: str) -> None:
    run = strange_run(shared_run, elsewhere / "run", *ASKS[0])
    assert READERS[name](str(run)) == 0
    assert not (elsewhere / "imported").exists()


@pytest.mark.parametrize("where", ["config", "weights", "both"])
@pytest.mark.parametrize("ask", ASKS[:-1], ids=lambda ask: ask[1])
def test_verify_imports_nothing_that_a_folder_names(
    folder: Path, elsewhere: Path, where: str, ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if where != "weights":
        ask_in_config(folder / "config.yaml", *ask)
        rewrite(folder, "config.yaml", (folder / "config.yaml").read_bytes())
    if where != "config":
        ask_in_weights(folder / "policy.safetensors", *ask)
        rewrite(folder, "policy.safetensors", (folder / "policy.safetensors").read_bytes())
    assert verify([str(folder), "--iterations", "1"]) == 2
    assert key_of(ask) in capsys.readouterr().err
    assert not (elsewhere / "imported").exists()


def test_python_and_the_hub_import_nothing_that_a_stranger_names(
    folder: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda name, files: folder)
    for index, (section, key, value) in enumerate((ASKS[0], ASKS[4])):
        ask_in_weights(folder / "policy.safetensors", section, key, value)
        rewrite(folder, "policy.safetensors", (folder / "policy.safetensors").read_bytes())
        for source in (str(folder), f"hub:{REPO}"):
            with contextlib.nullcontext() if index == 0 else pytest.raises(InputError, match="trust=True"):
                assert load(source).settings.env.id == "stranger:Evil-v0"
        assert verify([f"hub:{REPO}"]) == 2
    assert not (elsewhere / "imported").exists()
    with pytest.raises(InputError, match="Trunk"):
        load(str(folder), trust=True)
    assert (elsewhere / "imported").exists()


def test_a_user_resumes_an_own_run_that_names_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module.py").write_text(MODULE.replace("Evil", "Own"))
    small = ["--env", "own_module:Own-v0", "--num-envs", "4", "--n-steps", "8", "--batch-size", "32"]
    start = ["--quiet", "--total-timesteps", "32", "--output-dir", "run", *small]
    resume = ["--quiet", "--resume", "run", "--total-timesteps", "64"]
    assert train_sequential(start) == 0 and train_sequential(resume) == 0
    ask_in_config(tmp_path / "run" / "config.yaml", "logging", "callbacks", ["own_module:callback"])
    assert train_sequential(resume) == 2  # added by someone who has no key
    assert "sets logging.callbacks" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another-user"))
    assert train_sequential(resume) == 2
