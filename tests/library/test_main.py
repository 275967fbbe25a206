"""The one command: it leads to the scripts' commands, and an installed package has all it needs."""

import sys
from pathlib import Path

import pytest

from parallel_ppo import arguments
from parallel_ppo.arguments import as_typed
from parallel_ppo.commands import main as command
from parallel_ppo.commands import train
from parallel_ppo.commands.training_flags import CONFIG, config_file
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("words", "trainer"),
    [
        (["--env", "coinrun"], "train_parallel"),
        (["--sequential", "--env", "coinrun"], "train_sequential"),
        (["--nnodes", "2"], "train_cluster"),
        (["--node-rank=1"], "train_cluster"),
    ],
)
def test_train_chooses_the_trainer(words: list[str], trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []
    for name in ("train_parallel", "train_sequential", "train_cluster"):
        monkeypatch.setattr(train, name, lambda argv, name=name: seen.append((name, argv)))
    monkeypatch.setattr(train, "leave", lambda code: None)
    monkeypatch.setattr("sys.argv", ["parallel-ppo"])
    command.main(["train", *words])
    assert seen == [(trainer, [word for word in words if word != "--sequential"])]


def test_an_unknown_command_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["fly"]) == 2
    assert "error: fly: no such command; known are train, evaluate" in capsys.readouterr().err
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in command.COMMANDS)


def test_commands_are_shown_as_they_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/bin")
    assert as_typed("train_timed.py --env coinrun") == "python train_timed.py --env coinrun"
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.chdir(Path(sys.executable).parents[1])
    assert as_typed("-m parallel_ppo export") == "bin/python -m parallel_ppo export", "not another Python"
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/bin")
    monkeypatch.setattr(arguments, "HOME", tmp_path)
    assert as_typed("train_timed.py --env coinrun") == "parallel-ppo train --sequential --env coinrun"
    assert as_typed("-m parallel_ppo export runs/mine") == "parallel-ppo export runs/mine"
    assert set(arguments.SCRIPTS) >= {path.name for path in ROOT.glob("*.py")} - {"setup.py"}


def test_shipped_settings_are_in_the_package_and_at_the_root() -> None:
    assert CONFIG.parent == ROOT / "parallel_ppo"
    assert {path.name for path in CONFIG.glob("*.yaml")} == {
        path.name for path in (ROOT / "config").glob("*")
    }


def test_a_shipped_file_is_found_where_no_checkout_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_file("config/cartpole.yaml") == CONFIG / "cartpole.yaml"
    assert config_file("config/mine.yaml") == Path("config/mine.yaml")
    Path("config").mkdir()
    Path("config/cartpole.yaml").touch()
    assert config_file("config/cartpole.yaml") == Path("config/cartpole.yaml")
