"""`parallel_ppo.train`: the same run as the command's, with exceptions and callbacks; from threads,
notebooks and bare scripts.
"""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import parallel_ppo
from parallel_ppo.commands.train import train_sequential
from parallel_ppo.exits import EnvironmentFault
from parallel_ppo.library.training import Session, train
from parallel_ppo.training.callbacks import stop_reason
from tests.conftest import ROOT
from tests.envs.unregistered import Cart, Same, make_cart
from tests.library import watchers
from tests.policies.own_networks import Fine

SHORT: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 16, "n_steps": 16, "batch_size": 64, "quiet": True}


def command_sha256(run: Path, steps: int) -> str:
    flags = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--quiet"]
    code = train_sequential(
        [*flags, "--num-threads", "1", "--total-timesteps", str(steps), "--output-dir", str(run)]
    )
    assert code == 0
    return json.loads((run / "summary.json").read_text())["policy_sha256"]


@pytest.mark.multiprocess
def test_classes_and_functions_are_environments_and_wrappers(tmp_path: Path) -> None:
    def learned(env: Any, **more: Any) -> str:
        values = SHORT | {"env": env, "total_timesteps": 512, "num_workers": 2}
        return train(**values, **more, output_dir=tmp_path / str(len(list(tmp_path.iterdir())))).summary[
            "policy_sha256"
        ]

    by_name = learned("tests.envs.unregistered:make_cart")
    assert learned(make_cart, wrappers=[Same]) == by_name
    assert learned(Cart) == learned("tests.envs.unregistered:Cart")


@pytest.mark.multiprocess
def test_train_and_the_command_give_one_hash_whatever_the_caller_did_to_torch(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    seen: list[parallel_ppo.Progress] = []
    runs: list[parallel_ppo.Run] = []

    def in_a_thread() -> None:
        runs.append(
            train(**SHORT, num_workers=2, total_timesteps=10_000, output_dir=tmp_path / "python",
                  stop_when=lambda progress: progress.iteration == 3, callbacks=[seen.append])
        )  # fmt: skip

    try:
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
    finally:
        torch.set_default_dtype(torch.float32)
    [run] = runs
    assert run.summary["policy_sha256"] == command_sha256(tmp_path / "command", 3 * 256)
    assert run.summary["stop_reason"] == "stop_when"
    assert [progress.iteration for progress in seen] == [1, 2], "the first that stops ends the asking"
    assert seen[1].metrics == run.metrics[1]
    assert seen[1].directory == run.directory == tmp_path / "python"
    assert list(run.frame().index) == [1, 2, 3]


def test_a_class_becomes_the_setting_and_a_run_is_resumed(tmp_path: Path) -> None:
    run = train(**SHORT, sequential=True, policy=Fine, total_timesteps=256, output_dir=tmp_path / "run",
                settings={"training": {"gamma": np.float64(0.5)}, "training.gae_lambda": 0.75})  # fmt: skip
    assert run.summary["policy"] == "tests.policies.own_networks:Fine"
    run = train(resume=run, total_timesteps=512, sequential=True, quiet=True)
    assert len(run.metrics) == 2
    saved = (run.directory / "config.yaml").read_text()
    assert "gamma: 0.5" in saved and "gae_lambda: 0.75" in saved
    assert repr(parallel_ppo.load(run)) == f"<Policy for CartPole-v1, {run.summary['policy_sha256'][:12]}>"
    assert parallel_ppo.Run(str(run.directory)) == run


def test_a_failing_callback_is_raised_and_the_run_is_saved(tmp_path: Path) -> None:
    def watch(progress: parallel_ppo.Progress) -> None:
        raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError, match=r"^oh$"):
        train(**SHORT, sequential=True, total_timesteps=512, output_dir=tmp_path / "run", callbacks=[watch])
    assert parallel_ppo.Run(tmp_path / "run").summary["iterations"] == 1


@pytest.mark.parametrize("where", ["caller", "trainer"])
def test_a_callback_acts_evaluates_logs_and_saves(where: str, tmp_path: Path) -> None:
    call: Any = watchers.use_everything if where == "caller" else "tests.library.watchers:use_everything"
    run = train(**SHORT, sequential=True, total_timesteps=768, output_dir=tmp_path / "run", callbacks=[call])
    first, second, third = run.metrics
    assert first["custom/left"] + first["custom/right"] == 1 and first["custom/evaluated"] > 0
    assert "custom/left" not in third and "custom/left" not in second
    kept = {path.name for path in (run.directory / "checkpoints").glob("step_*")}
    assert kept == {"step_0", "step_256", "step_768"}
    plain = train(**SHORT, sequential=True, total_timesteps=768, output_dir=tmp_path / "plain")
    assert run.summary["state_sha256"] == plain.summary["state_sha256"]


def test_a_broken_environment_shows_its_traceback(tmp_path: Path) -> None:
    values = SHORT | {"env": "tests.envs.reporting:Breaking", "output_dir": tmp_path / "run"}
    for more in ({"sequential": True}, {"num_workers": 2}):
        values["output_dir"] = tmp_path / next(iter(more))
        with pytest.raises(parallel_ppo.RunError, match=r"reporting.py line \d+\): it broke") as caught:
            train(**values, **more, total_timesteps=10_000)
        assert "\n" not in str(caught.value) and "reporting.py" in str(caught.value.__cause__)
        assert "raise ValueError" in (values["output_dir"] / "traceback.txt").read_text()


@pytest.mark.parametrize(
    ("answer", "reason"), [(None, None), (False, None), (True, "f"), (np.True_, "f"), ("enough", "enough")]
)
def test_a_callback_goes_on_or_stops(answer: Any, reason: str | None) -> None:
    assert stop_reason("f", answer) == reason


@pytest.mark.parametrize("answer", [0, 3, [], float("nan"), np.zeros(2)])
def test_a_callback_that_returns_anything_else_fails(answer: Any) -> None:
    with pytest.raises(TypeError, match="expected None, True, False or a text with the reason"):
        stop_reason("f", answer)


def test_a_fault_of_an_environment_can_be_pickled() -> None:
    fault = EnvironmentFault("environment 3 (Mine-v0)", "raised ValueError in step")
    for other in (pickle.loads(pickle.dumps(fault)), copy.copy(fault)):
        assert str(other) == "environment 3 (Mine-v0) raised ValueError in step"
        assert other.detail == fault.detail and type(other) is EnvironmentFault


def test_a_run_knows_its_place_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without standard output too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdout", None)
    run = train(**(SHORT | {"quiet": False}), sequential=True, total_timesteps=256, output_dir="~/runs/one")
    assert run.directory == tmp_path / "home" / "runs" / "one"
    assert parallel_ppo.Run("somewhere").directory == tmp_path / "somewhere"
    assert run.summary["iterations"] == 1


def main_network() -> type:
    network = type("Net", (Fine,), {})
    network.__module__ = "__main__"
    return network


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"seeed": 1}, "seeed: no such setting; did you mean 'seed'?"),
        ({"hidden_size": 256}, "hidden_size: .*did you mean 'hidden_sizes'"),
        ({"learning_rate": lambda left: left}, "training.learning_rate: got a lambda"),
        ({"output_dir": "/proc/run"}, "give another output_dir$"),
        ({"env": gymnasium.Env}, "env.id: .* made a Env without spaces"),
        ({"seed": -1}, "training.seed: got -1"),
        ({"settings": [1]}, "settings: got .*; expected a dictionary"),
        ({"stop_when": 3}, "stop_when: got 3; expected a function"),
        ({"callbacks": print}, "callbacks: got .*; expected a list of functions or 'module:function'"),
        ({"callbacks": [3]}, "callbacks: got .*; expected a list of functions or 'module:function'"),
        ({"seed": object()}, "training.seed: got .*; expected plain values"),
        ({"policy": main_network()},
        "training.policy: Net is defined in the running script or notebook, .*%%writefile my_module.py"),
        ({"policy": "__main__:Net"}, "training.policy: .* running script .* give 'my_module:Net'"),
        ({"env": "__main__:Env-v0"}, "env.id: .* running script .* give 'my_module:Env-v0'"),
        ({"callbacks": ["__main__:watch"]}, "logging.callbacks: .* running script .* 'my_module:watch'"),
        ({"policy": "nowhere:Net"}, "training.policy: cannot import 'nowhere'"),
        ({"env": "OnlyHere-v0"},
        "env.id: 'OnlyHere-v0' is registered in the running script or notebook.*%%writefile my_envs.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_raised_in_one_line(given: dict, line: str, tmp_path: Path) -> None:
    gymnasium.registry.pop("OnlyHere-v0", None)
    gymnasium.register("OnlyHere-v0", entry_point="__main__:Nothing")
    with pytest.raises(parallel_ppo.InputError, match=line) as caught:
        train(**(SHORT | {"total_timesteps": 256, "output_dir": tmp_path / "run"} | given))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text("def watch(progress):\n    return progress.iteration == 2\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, parallel_ppo\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules\nrun ="
        " parallel_ppo.train('CartPole-v1', num_envs=16, n_steps=16, batch_size=64, total_timesteps=10**5,\n "
        "                        num_workers=2, callbacks=['my_module:watch'],"
        " output_dir='run')\nprint('STOPPED', run.summary['stop_reason'], run.summary['policy_sha256'])\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"STOPPED my_module:watch {command_sha256(tmp_path / 'command', 512)}" in done.stdout
    assert done.stdout.count("done: 512 steps") == 1, "what the command would say"


def test_ctrl_c_saves_the_run_and_a_lost_caller_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{"numbers": {}, "save": False}, KeyboardInterrupt()])

    def interrupted(self: Session, record: dict, channel: Any) -> dict:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(Session, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(**SHORT, sequential=True, total_timesteps=10**7, output_dir=tmp_path / "run")
    summary = parallel_ppo.Run(tmp_path / "run").summary
    assert summary["iterations"] == 2
    assert summary["stop_reason"] in (signal.Signals.SIGINT.name, "the caller left")
