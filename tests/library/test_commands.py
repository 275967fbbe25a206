"""The commands as functions: the same results, with exceptions in place of exit codes."""

from pathlib import Path

import pytest

import parallel_ppo
from parallel_ppo.commands.train import train_sequential
from parallel_ppo.library import commands
from parallel_ppo.library.commands import ExitCode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "run"
    flags = ["--num-envs", "8", "--n-steps", "32", "--batch-size", "64", "--total-timesteps", "256"]
    flags += ["--env", "CartPole-v1", "--num-threads", "1", "--quiet", "--output-dir", str(folder)]
    assert train_sequential(flags) == 0
    return folder


@pytest.mark.multiprocess
def test_evaluate_returns_the_report_and_leaves_the_run_alone(run: Path) -> None:
    before = set(run.rglob("*"))
    report = parallel_ppo.evaluate(run, num_episodes=8, deterministic=True, max_steps=7, num_workers=1)
    assert (report["num_episodes"], report["deterministic"], report["max_steps"]) == (8, True, 7)
    assert set(run.rglob("*")) == before
    with pytest.raises(parallel_ppo.InputError, match="num_episodes 0: expected a whole number from 1"):
        parallel_ppo.evaluate(run, num_episodes=0)


def test_keywords_become_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []

    def recorded(*given: str) -> list[str]:
        words[:] = given
        return ["true"]

    monkeypatch.setattr(commands, "command", recorded)
    monkeypatch.setenv("HOME", "/home/me")
    assert parallel_ppo.export("~/run", "~/policy.onnx") == Path("/home/me/policy.onnx")
    assert words == ["export", "/home/me/run", "--quiet", "--output", "/home/me/policy.onnx"]
    parallel_ppo.push("run", "me/policy", private=True, skip_play=False)
    assert words == ["push", "run", "--repo", "me/policy", "--private"]
    assert parallel_ppo.play("run", "film.mp4", grid="2x2") == Path("film.mp4").absolute()
    assert words == ["play", "run", "--quiet", "--output", "film.mp4", "--grid", "2x2"]


@pytest.mark.parametrize(("code", "expected"), [(0, True), (ExitCode.DIFFERENT, False)])
def test_verify_tells_equal_from_different(
    code: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "command", lambda *words: ["sh", "-c", f"echo verdict; exit {code}"])
    assert parallel_ppo.verify("hub:me/policy") is expected


def test_a_crash_of_verify_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "command", lambda *words: ["sh", "-c", "echo ValueError >&2; exit 1"])
    with pytest.raises(parallel_ppo.RunError, match="ValueError"):
        parallel_ppo.verify("hub:me/policy")


def test_another_ending_is_an_error_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "command", lambda *words: ["sh", "-c", "echo error: no >&2; exit 8"])
    with pytest.raises(parallel_ppo.RunError, match=r"^no$") as caught:
        parallel_ppo.verify("hub:me/policy")
    assert caught.value.code == ExitCode.NOT_COMPARABLE
