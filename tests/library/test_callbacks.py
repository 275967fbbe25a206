"""Callbacks of the settings: they see progress, may stop, cannot change what is learned, and their
failure loses nothing.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_ppo.commands.train import train_sequential
from parallel_ppo.exits import ExitCode
from parallel_ppo.machine.signals import Signals
from parallel_ppo.training.callbacks import Callback, Callbacks, Progress, Wishes

SHORT = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--quiet",
         "--num-threads", "1", "--total-timesteps", "1024"]  # fmt: skip


def trained(run: Path, *flags: str) -> dict:
    assert train_sequential([*SHORT, "--output-dir", str(run), *flags]) == 0
    return json.loads((run / "summary.json").read_text())


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def calling(name: str) -> str:
    return f"--set=logging.callbacks=[tests.library.watchers:{name}]"


def test_a_callback_stops_the_run_and_changes_nothing_before(tmp_path: Path) -> None:
    summary = trained(tmp_path / "run", calling("stop_after_two,tests.library.watchers:stop_after_two"))
    assert (summary["iterations"], summary["stop_reason"]) == (2, "tests.library.watchers:stop_after_two")
    without = trained(tmp_path / "without", "--total-timesteps", "512")
    assert summary["policy_sha256"] == without["policy_sha256"]
    assert [line["policy_sha256"] for line in lines(tmp_path / "run")] == [
        line["policy_sha256"] for line in lines(tmp_path / "without")
    ]


def test_a_failing_callback_is_named_and_the_run_is_saved(tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    assert train_sequential([*SHORT, "--output-dir", str(run), calling("fail")]) == ExitCode.CALLBACK
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0
    assert "callback tests.library.watchers:fail failed after iteration 1 (ValueError: at step 256)" in told
    assert json.loads((run / "summary.json").read_text())["iterations"] == 1
    assert train_sequential(["--resume", str(run), "--set", "logging.callbacks=[]", "--quiet"]) == 0
    whole = trained(tmp_path / "whole")
    assert json.loads((run / "summary.json").read_text())["policy_sha256"] == whole["policy_sha256"]


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_callback_that_ends_its_process_fails_like_others(end: BaseException, tmp_path: Path) -> None:
    def leave(progress: Progress) -> None:
        raise end

    failures: list[Exception] = []
    budget: Any = SimpleNamespace(fail=failures.append)
    wishes = Wishes(lambda: tmp_path)
    signals = Signals()  # as in a run: a KeyboardInterrupt is then not the user's
    try:
        record = {"iteration": 1, "steps_global": 256, "episode_return_mean": None}
        Callbacks([Callback("mine:leave", leave)], tmp_path, budget)(record, wishes)
    finally:
        signals.close()
    (failure,) = failures
    assert f"callback mine:leave failed after iteration 1 ({type(end).__name__}" in str(failure)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("NOT_A_FUNCTION", "tests.library.watchers:NOT_A_FUNCTION is not a function"),
        ("missing", "the module 'tests.library.watchers' has no 'missing'"),
    ],
)
def test_callbacks_are_looked_up_before_anything_is_written(
    name: str, line: str, tmp_path: Path, capsys
) -> None:
    assert train_sequential([*SHORT, "--output-dir", str(tmp_path / "run"), calling(name)]) == 2
    assert f"logging.callbacks: {line}" in capsys.readouterr().err.replace(
        "cannot find 'tests.library.watchers:missing'; ", ""
    )
    assert not (tmp_path / "run").exists()
