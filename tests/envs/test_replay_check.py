"""Environments whose replayed episodes differ are found before the start."""

import functools
import json
import time
from pathlib import Path

import pytest

import tests.envs.sample_envs  # noqa: F401  (registers them)
from parallel_ppo.commands import train
from parallel_ppo.envs import gymnasium, replay_check
from parallel_ppo.envs.contract import ReplayCheck
from parallel_ppo.settings.schema import EnvSettings

ENV = "tests.envs.sample_envs:Peculiar-v0"
SMALL = ["--num-envs", "4", "--n-steps", "16", "--batch-size", "16", "--quiet"]


def examined(habit: str, *wrappers: str) -> ReplayCheck:
    settings = EnvSettings(id=ENV, kwargs={"habit": habit}, wrappers=list(wrappers))
    bare = EnvSettings(id=ENV, kwargs={"habit": habit})
    make_bare = functools.partial(gymnasium.make, bare) if wrappers else None
    return replay_check.examine(functools.partial(gymnasium.make, settings), make_bare, "it")


@pytest.mark.parametrize(
    ("habit", "what"),
    [
        ("draws globally", "another observation at step 0"),
        ("seeds the global generator", "another observation at step 1"),
        ("draws its rewards", "another reward at step 1"),
        ("ends when it likes", "another end at step"),
    ],
)
def test_what_differs_even_in_a_new_object_cannot_be_reproduced(habit: str, what: str) -> None:
    found = examined(habit)
    assert found.differs.startswith(what) and not found.differs_when_reused
    assert "something other than self.np_random" in found.why_inexact("it", True)


@pytest.mark.parametrize(
    ("habit", "where"), [("sticks now and then", "step"), ("starts elsewhere now and then", "reset")]
)
def test_draws_from_global_generators_are_found_if_rarely_used(habit: str, where: str) -> None:
    found = examined(habit)
    assert found == ReplayCheck(
        found.step_seconds, draws_globally=where, machine_functions=found.machine_functions
    )
    assert f"draws from the global generators in {where}" in found.why_inexact("it", True)


@pytest.mark.parametrize(
    ("habit", "wrappers", "remembers"),
    [
        ("differs when reused", [], False),
        ("teaches a curriculum", [], False),
        ("ignores its seed", [], True),  # in fresh objects it would play one episode for ever
        ("none", ["gymnasium.wrappers:NormalizeReward"], True),  # its memory is what it is for
        ("differs when reused", ["gymnasium.wrappers:NormalizeReward"], False),
    ],
)
def test_what_differs_in_a_used_object_only(habit: str, wrappers: list[str], remembers: bool) -> None:
    found = examined(habit, *wrappers)
    assert found.differs_when_reused and not found.differs and found.remembers == remembers
    assert "remembers earlier episodes" in found.why_inexact("it", False) and not found.why_inexact(
        "it", True
    )


def test_what_is_reproducible_is_left_in_peace() -> None:
    for env_id in ("CartPole-v1", "Pendulum-v1", "tests.envs.sample_envs:Walker-v0"):
        found = gymnasium.check_replay(EnvSettings(id=env_id))
        assert (
            found == ReplayCheck(found.step_seconds, machine_functions=found.machine_functions)
            and 0 < found.step_seconds < 0.1
        )
    found = examined("seeds and draws at the start")
    assert found == ReplayCheck(found.step_seconds, machine_functions=found.machine_functions)


@pytest.mark.parametrize("habit", ["kills itself", "hangs"])
def test_a_trial_that_fails_says_nothing(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_check, "PATIENCE", 0.5)
    began = time.monotonic()
    assert gymnasium.check_replay(EnvSettings(id=ENV, kwargs={"habit": habit})) == ReplayCheck()
    assert time.monotonic() - began < 5


def run(directory: Path, habit: str, *more: str) -> dict:
    chosen = ["--env", ENV, "--set", f"env.kwargs={{habit: {habit}}}", *SMALL, "--total-timesteps", "128"]
    assert train.train_sequential([*chosen, *more, "--output-dir", str(directory)]) == 0
    return json.loads((directory / "summary.json").read_text())


def test_the_promise_is_given_up_once_and_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not run(tmp_path, "draws its rewards")["bit_exact"]
    assert capsys.readouterr().err.count("has another reward at step 1 when an episode is replayed") == 1
    assert train.train_sequential(["--resume", str(tmp_path), "--total-timesteps", "192", "--quiet"]) == 0
    assert capsys.readouterr().err.count("an environment could not be reached again") == 1
    assert not json.loads((tmp_path / "summary.json").read_text())["bit_exact"]


def test_fresh_objects_keep_the_promise_where_reuse_would_break_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole", "differs when reused")
    assert "fresh_objects: true" in (tmp_path / "whole" / "config.yaml").read_text()
    run(tmp_path / "halves", "differs when reused", "--total-timesteps", "64")
    resume = ["--resume", str(tmp_path / "halves"), "--total-timesteps", "128", "--quiet"]
    assert train.train_sequential(resume) == 0
    resumed = json.loads((tmp_path / "halves" / "summary.json").read_text())
    assert whole["bit_exact"] and resumed["bit_exact"]
    assert whole["policy_sha256"] == resumed["policy_sha256"]
    reused = run(tmp_path / "reused", "differs when reused", "--set", "env.fresh_objects=false")
    assert not reused["bit_exact"] and reused["policy_sha256"] != whole["policy_sha256"]
    assert capsys.readouterr().err.count("when reused") == 1


def test_a_run_saved_before_the_choice_existed_goes_on_as_it_was(tmp_path: Path) -> None:
    run(tmp_path, "differs when reused", "--set", "env.fresh_objects=false", "--total-timesteps", "64")
    saved = tmp_path / "config.yaml"
    saved.write_text(
        "".join(line for line in saved.read_text().splitlines(True) if "fresh_objects" not in line)
    )
    assert train.train_sequential(["--resume", str(tmp_path), "--total-timesteps", "128", "--quiet"]) == 0
    assert "fresh_objects: false" in saved.read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] == 128 and not summary["bit_exact"]
