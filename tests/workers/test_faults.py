"""Workers and coordinators that fail: noticed, replaced, redone; and the end is the same."""

import contextlib
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "workers"))

from parallel_ppo.commands import train  # noqa: E402
from parallel_ppo.envs import gymnasium, replay_check  # noqa: E402
from parallel_ppo.machine import descendants  # noqa: E402
from parallel_ppo.settings.schema import EnvSettings  # noqa: E402
from parallel_ppo.storage.json_lines import read_records  # noqa: E402
from tests.conftest import train_here  # noqa: E402
from tests.faults.training import Training, is_identical, tree  # noqa: E402

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SMALL = ["--num-envs", "4", "--n-steps", "8", "--batch-size", "32", "--num-workers", "2", "--quiet",
         "--set", "env.slice_envs=2", "--set", "hardware.pinning=none"]  # fmt: skip
CARTPOLE = ["--env", "CartPole-v1", "--n-epochs", "2", *SMALL]


def faulty(tmp_path: Path, fault: str, *more: str, once: bool = False) -> list[str]:
    mark = f", once: {tmp_path / 'once'}" if once else ""
    kwargs = ["--set", f"env.kwargs={{fault: {fault}{mark}}}"]
    return ["--env", "faulty_env:Faulty-v0", *SMALL, *kwargs, "--output-dir", str(tmp_path / "run"), *more]


def alone(arguments: list[str]) -> list[str]:
    """For the sequential trainer."""
    at = arguments.index("--num-workers")
    return arguments[:at] + arguments[at + 2 :]


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def test_a_hang_is_noticed_by_its_deadline(tmp_path, capsys):
    code = train.train_parallel(
        faulty(tmp_path, "hang", "--total-timesteps", "64", "--set", "parallel.hang_timeout=1.5", once=True)
    )
    assert code == 0
    assert "did not respond" in capsys.readouterr().err
    assert summary(tmp_path / "run")["worker_restarts"] == 1


@pytest.mark.filterwarnings("ignore:advice of a library")
def test_slow_environments_are_not_taken_for_hung(tmp_path, capfd):
    """A collect takes three times as long as a worker may be silent; but it counts its steps. What a
    library warns of was said by the coordinator, and is not said again by every worker.
    """
    pause = ["--set", "env.kwargs={pause: 0.2}", "--set", "parallel.hang_timeout=1"]
    assert train.train_parallel(faulty(tmp_path, "none", "--total-timesteps", "32", *pause)) == 0
    assert summary(tmp_path / "run")["worker_restarts"] == 0 and capfd.readouterr().err == ""


def test_a_worker_that_keeps_failing_ends_the_run_and_names_the_culprit(tmp_path, capsys):
    """The same error at the same step again would come a third time."""
    code = train.train_parallel(faulty(tmp_path, "raise", "--total-timesteps", "64", "--seed", "7"))
    error = capsys.readouterr().err.partition("error: ")[2]
    assert code == 4
    assert error.startswith("worker ")
    assert "again with the same error (iteration 0, seed 7)" in error.splitlines()[0]
    assert "raised RuntimeError in step" in error and "the environment is broken" in error
    assert summary(tmp_path / "run")["exit_code"] == 4
    assert (tmp_path / "run" / "checkpoints" / "step_0").is_dir()


def test_an_exception_in_the_sequential_trainer_ends_the_run_in_order(tmp_path, capsys):
    code = train.train_sequential(alone(faulty(tmp_path, "raise", "--total-timesteps", "64")))
    assert code == 4
    error = capsys.readouterr().err
    assert (
        error.startswith("error: environment 0 (faulty_env:Faulty-v0")
        and "the environment is broken" in error
    )
    assert summary(tmp_path / "run")["env_steps"] == 0


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_numbers_that_are_none_are_named_and_never_learned_from(tmp_path, capsys, what):
    code = train.train_parallel(faulty(tmp_path, f"nan {what}", "--total-timesteps", "64"))
    error = capsys.readouterr().err
    assert code == 3
    assert error.startswith("error: worker ") and error.count("\n") == 1
    assert "iteration 0: environment" in error and "at step 4 of the iteration" in error
    assert summary(tmp_path / "run")["exit_code"] == 3
    assert (tmp_path / "run" / "checkpoints" / "step_0").is_dir()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_fork_server_may_be_lost_too(tmp_path, number):
    length = ["--total-timesteps", str(32 * 40)]
    where, log = tmp_path / "run", tmp_path / "run.log"
    training = Training([*CARTPOLE, *length, "--output-dir", str(where)], log)
    deadline = time.monotonic() + 60
    while sum(1 for _ in read_records(where / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)
    _, fork_server, first, _ = tree(training.process.pid)
    os.kill(fork_server, number)
    os.kill(first, signal.SIGKILL)
    assert training.wait(120) == 0, log.read_text()
    train_here(tmp_path / "reference", *alone(CARTPOLE), *length)
    assert is_identical(where, tmp_path / "reference")
    assert summary(where)["worker_restarts"] >= 2
    assert training.left_behind() == (0, 0)


def test_a_run_that_ended_before_its_first_checkpoint_starts_again(tmp_path, capsys):
    length = ["--total-timesteps", "64"]
    assert train.train_parallel([*CARTPOLE, *length, "--output-dir", str(tmp_path / "a")]) == 0
    assert (
        train.train_parallel([*CARTPOLE, "--print-config", *length, "--output-dir", str(tmp_path / "x")]) == 0
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text(capsys.readouterr().out)
    assert train.train_parallel(["--resume", str(tmp_path / "b"), "--quiet"]) == 0
    assert is_identical(tmp_path / "b", tmp_path / "a")


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, capsys):
    where = tmp_path / "run"
    every = ["--set", "logging.checkpoint_iterations=1"]
    assert (
        train.train_parallel([*CARTPOLE, *every, "--total-timesteps", "96", "--output-dir", str(where)]) == 0
    )
    policy = where / "checkpoints" / "step_96" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1])
    with open(where / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 3, "torn')
    assert train.train_parallel(["--resume", str(where), "--total-timesteps", "128", "--quiet"]) == 0
    assert "step_96/policy.safetensors has" in (warning := capsys.readouterr().err)
    assert "step_64 is used instead" in warning
    assert (
        train.train_parallel(
            [*CARTPOLE, "--total-timesteps", "128", "--output-dir", str(tmp_path / "reference")]
        )
        == 0
    )
    assert is_identical(where, tmp_path / "reference")


def helped(tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "helpers").mkdir()
    kwargs = ["--set", f"env.kwargs={{folder: {tmp_path / 'helpers'}}}", "--set", "hardware.pinning=none"]
    return ["--env", "faulty_env:Helped-v0", *SMALL, *kwargs, "--output-dir", str(tmp_path / "run"), *more]


def helpers(tmp_path: Path, worker: int | None = None) -> list[int]:
    """Living helper processes, of one worker or of all processes that made environments."""
    found = [file.name.split("-") for file in (tmp_path / "helpers").glob("[0-9]*")]
    pids = [int(pid) for maker, pid in found if worker in (None, int(maker))]
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may end at any moment
        return False


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_at_a_normal_end_workers_close_their_environments(tmp_path):
    assert train.train_parallel(helped(tmp_path, "--total-timesteps", "64")) == 0
    made = {file.name.split("-")[0] for file in (tmp_path / "helpers").glob("[0-9]*")}
    assert len(made) >= 3  # two workers, and who looks at the environment before the start
    assert {file.name.split("-")[1] for file in (tmp_path / "helpers").glob("closed-*")} == made
    assert helpers(tmp_path) == []


def test_no_process_outlives_its_worker_or_the_coordinator(tmp_path, monkeypatch):
    """A helper and a daemon of each environment; the fork server is even stopped when the coordinator is
    killed.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "workers"))
    training = Training(helped(tmp_path, "--total-timesteps", str(10**9)), tmp_path / "log")
    metrics, faults = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "faults.jsonl"
    assert soon(lambda: metrics.exists() and metrics.stat().st_size > 0), (tmp_path / "log").read_text()
    _, fork_server, first, second = tree(training.process.pid)
    assert len(helpers(tmp_path, first)) == len(helpers(tmp_path, second)) == 4
    ignored = int(
        re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{helpers(tmp_path, first)[0]}/status").read_text())[1], 16
    )
    assert not any(ignored >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    os.kill(first, signal.SIGKILL)
    assert soon(lambda: helpers(tmp_path, first) == [])
    assert soon(lambda: faults.exists() and "replaced" in faults.read_text())
    assert len(helpers(tmp_path, second)) == 4
    os.kill(fork_server, signal.SIGSTOP)
    training.process.kill()
    assert soon(lambda: helpers(tmp_path) == [], 5)
    training.wait(5)
    assert training.left_behind() == (0, 0)


@pytest.mark.parametrize("ending", ["killed", "patience"])
def test_no_process_outlives_the_trial_before_the_start(tmp_path, monkeypatch, ending):
    """Neither a helper nor a daemon: when the coordinator is killed during the trial, or gives it up."""
    monkeypatch.setattr(replay_check, "PATIENCE", 100 if ending == "killed" else 1)
    (tmp_path / "helpers").mkdir()
    kwargs = {"folder": str(tmp_path / "helpers"), "pause": 1000}
    settings = EnvSettings(id="faulty_env:Helped-v0", kwargs=kwargs)
    coordinator = multiprocessing.get_context("fork").Process(target=gymnasium.check_replay, args=(settings,))
    coordinator.start()
    assert soon(lambda: len(helpers(tmp_path)) == 2)
    if ending == "killed":
        coordinator.kill()
    coordinator.join()
    assert soon(lambda: helpers(tmp_path) == [], 5)


def test_nothing_outlives_a_process_that_makes_its_environments_itself(tmp_path, monkeypatch):
    """The sequential trainer, killed. It cannot be under a guard, which would take the terminal from it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "workers"))
    arguments = alone(helped(tmp_path, "--total-timesteps", str(10**9)))
    trainer = subprocess.Popen([sys.executable, str(ROOT / "train_timed.py"), *arguments])
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert soon(lambda: metrics.exists() and metrics.stat().st_size > 0)
    assert len(helpers(tmp_path, trainer.pid)) == 8
    time.sleep(5 * descendants.LOOK_EVERY)  # what is younger than the last look is missed
    trainer.kill()
    assert soon(lambda: helpers(tmp_path) == [], 5)
    assert trainer.wait() == -signal.SIGKILL


@pytest.mark.parametrize("script", ["evaluate.py", "play.py"])
def test_nothing_outlives_a_killed_evaluation_or_film(tmp_path, monkeypatch, script):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "workers"))
    assert train.train_sequential(alone(helped(tmp_path, "--total-timesteps", "32"))) == 0
    for trace in (tmp_path / "helpers").iterdir():
        trace.unlink()
    command = [
        sys.executable,
        str(ROOT / script),
        str(tmp_path / "run"),
        "--num-episodes",
        "10000",
        "--quiet",
    ]
    player = subprocess.Popen(command)
    assert soon(lambda: len(helpers(tmp_path)) >= 4) and player.poll() is None
    time.sleep(10 * descendants.LOOK_EVERY)
    player.kill()
    assert player.wait() == -signal.SIGKILL
    assert soon(lambda: helpers(tmp_path) == [])


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "ends"])
def test_what_outlives_on_purpose_and_what_a_normal_end_leaves_is_left_alone(tmp_path, is_killed):
    reader, writer = os.pipe()

    def start() -> None:
        with descendants.watching_descendants():
            for variables in ({}, {descendants.OUTLIVES: "1"}):
                helper = subprocess.Popen(["sleep", "60"], env=os.environ | variables)
                os.write(writer, f"{helper.pid}\n".encode())
            time.sleep(60 if is_killed else 3 * descendants.LOOK_EVERY)

    process = multiprocessing.get_context("fork").Process(target=start)
    process.start()
    time.sleep(3 * descendants.LOOK_EVERY)
    tied, outliving = map(psutil.Process, map(int, os.read(reader, 100).split()))
    try:
        if is_killed:
            process.kill()
        process.join()
        assert tied.wait(5) is None if is_killed else tied.status() == "sleeping"
        assert outliving.status() == "sleeping"
    finally:
        for helper in (tied, outliving):
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()


@pytest.mark.parametrize(
    ("limit", "more", "flag"),
    [(resource.RLIMIT_FSIZE, None, "ulimit -f"), (resource.RLIMIT_AS, 3e8, "ulimit -v"), (resource.RLIMIT_AS,
        7e8, "ulimit -v")],
)  # fmt: skip
def test_limits_of_the_shell_are_one_line(tmp_path, limit, more, flag, capsys):
    """Before libraries are imported, and when the shared memory is there and the workers' own is not."""
    mapped = psutil.Process().memory_info().vms
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (100_000 if more is None else int(mapped + more), before[1]))
    try:
        far = ["--total-timesteps", "32", "--set", "env.num_envs=16384", "--set", "training.batch_size=16384"]
        code = train.train_parallel(
            [*CARTPOLE, *(far if more == 7e8 else far[:2]), "--output-dir", str(tmp_path / "run")]
        )
    finally:
        resource.setrlimit(limit, before)
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("error: ") and flag in error and error.count("\n") == 1


def test_settings_changed_behind_the_runs_back_are_named(tmp_path, capsys):
    where = tmp_path / "run"
    assert train.train_parallel([*CARTPOLE, "--total-timesteps", "32", "--output-dir", str(where)]) == 0
    config = where / "config.yaml"
    config.write_text(re.sub(r"gamma: [\d.]+", "gamma: 0.9", config.read_text()))
    assert train.train_parallel(["--resume", str(where), "--total-timesteps", "64", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: training.gamma: is 0.9 in the run's config.yaml")


def test_an_exit_in_c_code_ends_a_worker_at_once() -> None:
    """No exit handler of a library runs first: they take a second in which nobody knows that the worker
    is gone.
    """
    code = (
        "import ctypes; from parallel_ppo.workers.process import set_up\n"
        "handler = ctypes.CFUNCTYPE(None)(lambda: print('a handler ran', flush=True))\n"
        "library = ctypes.CDLL(None); library.on_exit(handler, None)\n"
        "set_up(None); library.exit(7)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (7, "")
