"""Every fault of a user's environment is one line that names it, in the real commands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_ppo.commands import train
from parallel_ppo.commands.evaluate import evaluate
from parallel_ppo.envs import single

ROOT = Path(__file__).resolve().parents[2]
ENV = "tests.envs.sample_envs:Broken-v0"
SMALL = ["--num-envs", "4", "--n-steps", "16", "--batch-size", "16", "--total-timesteps", "128", "--quiet"]

AT_ONCE = {
    "raise": "raised ValueError in reset (sample_envs.py line ",
    "exit": "raised SystemExit in reset (sample_envs.py line ",
    "leave": "raised Leaves in reset (sample_envs.py line ",
    "shape": "returned from reset an observation of shape (4,); its observation_space has (3,)",
    "dtype": "returned from reset an observation of type <U1; its observation_space has float32",
    "image-dtype": "returned from reset an observation of type float64; its observation_space has uint8",
    "nan": "returned an observation with nan at index 1",
    "reward-nan": "gave the reward nan",
    "reward-none": "returned from step the reward None",
    "reward-vector": "add a wrapper such as mo_gymnasium.wrappers:LinearReward",
    "end-array": "raised ValueError in step",
    "assertion": "cannot be made (AssertionError in sample_envs.py line ",
    "close": "did not return from close within 3 s",
    "observation-space": "has the observation space Text(1, 5",
    "action-space": "has the action space Text(1, 5",
}


def arguments(fault: str, after: int, output: Path) -> list[str]:
    chosen = f"env.kwargs={{fault: {fault}, after: {after}}}"
    return ["--env", ENV, "--set", chosen, "--output-dir", str(output), *SMALL]


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize("fault", AT_ONCE)
def test_found_before_anything_starts(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = train.train_parallel(arguments(fault, 0, tmp_path / "run"))
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"error: --env: {ENV} ") and AT_ONCE[fault] in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_missing_arguments_name_their_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--env", ENV, "--set", "env.kwargs={speed: 3}", "--output-dir", str(tmp_path / "run")]
    assert train.train_parallel([*given, *SMALL]) == 2
    assert "arguments of its constructor are given in env.kwargs, as {name: value}" in capsys.readouterr().err


LATER = {
    "raise": (4, "raised ValueError in step (sample_envs.py line "),
    "exit": (4, "raised SystemExit in step (sample_envs.py line "),
    "interrupt": (4, "raised KeyboardInterrupt in step (sample_envs.py line "),
    "leave": (4, "raised Leaves in step (sample_envs.py line "),
    "shape": (4, "returned from step an observation of shape (4,)"),
    "nan": (3, "returned an observation with nan at index 1"),
    "reward-nan": (3, "gave the reward nan"),
}


@pytest.mark.parametrize("fault", LATER)
def test_found_while_training(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = train.train_sequential(arguments(fault, 20, tmp_path))
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (LATER[fault][0], 1)
    assert f"error: environment 0 ({ENV}" in error and LATER[fault][1] in error
    assert (tmp_path / "summary.json").exists()


def test_a_fault_names_the_last_line_of_the_users_own_code() -> None:
    """Not the line of NumPy or the standard library that it called."""

    def step(action: int) -> None:
        json.loads("{")

    try:
        step(0)
    except ValueError as error:
        place = single._place(error)
    assert re.fullmatch(r" \(test_environment_faults\.py line \d+\)", place)


def test_a_close_that_never_returns_does_not_keep_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after_what_is_tried_first = 10
    assert train.train_sequential(arguments("close", after_what_is_tried_first, tmp_path)) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: environment 0") and "did not return from close" in line


def test_a_relative_folder_stays_if_an_environment_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.train_sequential(arguments("chdir", 0, Path("run"))) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert (
        evaluate(["run", "--num-episodes", "1", "--num-workers", "1", "--output", "one.json", "--quiet"]) == 0
    )
    assert (tmp_path / "one.json").exists() and Path.cwd() == tmp_path


def test_a_state_that_outgrows_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = "tests.envs.sample_envs:Hoarding-v0"
    assert train.train_sequential(["--env", env, "--output-dir", str(tmp_path), *SMALL]) == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    assert f"environment 0 ({env}) has grown to a state of 1,600," in error and "get_state" in error


@pytest.mark.slow
@pytest.mark.multiprocess
def test_found_by_a_worker(tmp_path: Path) -> None:
    chosen = [*arguments("raise", 20, tmp_path), "--num-workers", "1"]
    command = [sys.executable, "train_parallel_timed.py", *chosen]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = result.stderr.splitlines()
    assert result.returncode == 4, result.stderr
    assert [line.split(":")[0] for line in lines] == ["warning", "error"]
    assert all("raised ValueError in step (sample_envs.py line " in line for line in lines)
    assert lines[1].startswith("error: worker 0 raised again with the same error (iteration 1, seed 1)")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("env.wrappers=[gymnasium.wrappers:Nothing]",
        "env.wrappers: cannot find 'gymnasium.wrappers:Nothing'"),
        ("env.wrappers=[nothing]", "expected module:Class"),
        ("env.wrappers=['gymnasium.wrappers:ResizeObservation': {shape: [8, 8]}]",
        "env.wrappers: gymnasium.wrappers:ResizeObservation cannot wrap"),
        ("env.kwargs={nonsense: 1}", "cannot be made (TypeError"),
        ("training.policy=nature",
        "training.policy: 'nature' cannot read the vectors of CartPole-v1; use mlp"),
    ],
)  # fmt: skip
def test_wrong_settings_of_an_environment(
    setting: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = train.train_parallel(
        ["--env", "CartPole-v1", "--set", setting, "--output-dir", str(tmp_path / "run")]
    )
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert expected in error
