"""The contract, one row for each feature and kind of environment: the number of workers, a killed worker, a
killed coordinator, a resume and two nodes leave no trace in what is learned.
"""

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes, summary
from tests.conftest import ROOT, Outcome, train, train_here

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
FAR = ["--set", "training.schedule_steps=1000000", "--set", "logging.tensorboard=false", "--seed", "7"]
SMALL = ["--num-envs", "8", "--set", "env.slice_envs=2", "--n-steps", "16"]
USUAL = ["--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--n-epochs", "2"]
MINIBATCHES = [*SMALL, "--batch-size", "64", "--n-epochs", "2"]
WHOLE_BATCH = [*SMALL, "--batch-size", "128", "--n-epochs", "1"]
FULL = ["--num-envs", "32", "--n-steps", "64", "--batch-size", "512"]
NORMALIZED = ["--set", "training.normalize_observations=true"]
CARTPOLE = ["--env", "CartPole-v1", *NORMALIZED]
COINRUN = ["--env", "coinrun", "--policy", "nature"]
SAMPLE = "tests.envs.sample_envs:"
# Of a slice's four microbatches, one trains the predictors, one does so in part.
CURIOUS = ["--env", "MountainCar-v0", *MINIBATCHES, "--set", "curiosity.warmup_steps=100",
           "--set", "curiosity.hidden_size=16", "--set", "curiosity.update_share=0.4",
           "--set", "training.lane_samples=4"]  # fmt: skip
A3C = ["--algorithm", "a3c", "--set", "training.num_actors=4", *WHOLE_BATCH]
APPO = ["--algorithm", "appo", "--set", "training.optimizer=adamw", *MINIBATCHES]
LAG = ["--set", "training.lag=3", "--set", "training.learning_rate_warmup=2000", *MINIBATCHES]
RECURRENT = ["--set", "recurrence.size=32", "--set", "recurrence.sequence_length=8", "--recurrent"]
GENERALIZING = ["--num-levels", "6", "--set", "env.level_sampler=plr", "--set", "training.augmentation=crop"]
EVALUATED = ["--num-levels", "5", "--set", "evaluation.interval=2", "--set", "evaluation.num_episodes=10",
             "--set", "evaluation.max_steps=25"]  # fmt: skip
ROWS = {
    "CartPole": ["--env", "CartPole-v1", *USUAL],
    "coinrun, IMPALA network": ["--env", "coinrun", "--policy", "impala", *USUAL[:-1], "1"],
    "starpilot, evaluated": ["--env", "starpilot", "--policy", "nature", *USUAL, *EVALUATED],
    "a2c": [*CARTPOLE, "--algorithm", "a2c", *WHOLE_BATCH],
    "rnd": ["--curiosity", "rnd", *CURIOUS],
    "Gaussian actions": ["--env", "Pendulum-v1", *NORMALIZED, *USUAL],
    "mixed observations": ["--env", f"{SAMPLE}Camera-v0", *NORMALIZED, *USUAL],
    "state of an environment's own": ["--env", f"{SAMPLE}Walker-v0", *NORMALIZED, *USUAL],
    "no reuse": ["--env", f"{SAMPLE}Peculiar-v0", "--set", "env.kwargs={habit: differs when reused}", *USUAL],
    "Box2D": ["--env", "BipedalWalker-v3", "--set", "env.kwargs.max_episode_steps=7", *NORMALIZED, *USUAL],
    "mujoco": ["--env", "Reacher-v5", "--set", "training.activation=relu", "--set",
               "training.initialization=fan_in", "--set", "training.initial_log_std=-1", *NORMALIZED, *USUAL],
}  # fmt: skip
NODES = {  # rows that two nodes learn as well
    "a3c": [*CARTPOLE, *A3C],
    "impala on coinrun": [*COINRUN, "--algorithm", "impala", *WHOLE_BATCH],
    "appo, adamw": [*CARTPOLE, *APPO],
    "lag 3, warm-up": [*CARTPOLE, *LAG],
    "plr, drac, lag 1": ["--env", "starpilot", "--policy", "impoola", "--set", "training.lag=1",
                         *MINIBATCHES[:-1], "1", *GENERALIZING],
    "small images, adaptive rate": ["--env", "benchmarks.peers.frames:SmallFrames-v0", *MINIBATCHES,
                                    "--set", "training.learning_rate_schedule=adaptive"],
    "icm": ["--curiosity", "icm", *CURIOUS],
    "init, schedule, best": [
        "--env", "tests.envs.reporting:Reporting", "--set", "env.info_keys=[angle]", *MINIBATCHES,
        "--init-from", str(ROOT / "tests/fixtures/c999f13/ppo"), "--set", "training.hidden_sizes=[16, 16]",
        "--set", "training.normalize_observations=false",
        "--set", "training.learning_rate_schedule=tests.envs.reporting:rate",
        "--set", "training.schedule_steps=5000", "--set", "evaluation.interval=2",
        "--set", "evaluation.num_episodes=2", "--set", "evaluation.chooses_best=true",
    ],
    "ngu": ["--curiosity", "ngu", *CURIOUS],
    "gru, lag 1": [*CARTPOLE, *MINIBATCHES, "--set", "training.lag=1", *RECURRENT, "gru"],
    "lstm, impala on coinrun": [*COINRUN, "--algorithm", "impala", *WHOLE_BATCH, *RECURRENT, "lstm",
                                "--set", "recurrence.separate_value=true"],
}  # fmt: skip
LONG = {
    "a2c on coinrun": [*COINRUN, "--algorithm", "a2c", *WHOLE_BATCH],
    "a3c on coinrun": [*COINRUN, *A3C],
    "appo on coinrun": [*COINRUN, *APPO],
    "lag 3 on coinrun": [*COINRUN, *LAG],
    "full coinrun": ["--env", "coinrun", *FULL],
    "full starpilot": ["--env", "starpilot", "--policy", "nature", *FULL],
    "full CartPole": ["--env", "CartPole-v1", *FULL],
}


def row(name: str, arguments: list[str], *marks: Any) -> Any:
    if "coinrun" in arguments or "starpilot" in arguments:
        marks = (*marks, pytest.mark.procgen)
    if name in ("Box2D", "mujoco") and importlib.util.find_spec(name) is None:
        marks = (*marks, pytest.mark.skip(reason=f"needs the extra [{name.lower()}]"))
    return pytest.param(name, arguments, id=name, marks=marks)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(row(*item) for item in (ROWS | NODES).items()),
        *(row(*item, pytest.mark.full) for item in LONG.items()),
    ],
)
def test_workers_kills_resumes_and_nodes_leave_no_trace(
    name: str, arguments: list[str], tmp_path: Path
) -> None:
    chosen = [*FAR, *arguments]
    broken = killed_and_resumed(tmp_path / "broken", chosen)
    steps = ["--total-timesteps", str(broken.summary["env_steps"])]
    whole = train_here(tmp_path / "whole", *chosen, *steps)
    assert (
        broken.summary["worker_restarts"] >= 1 and broken.summary["bit_exact"] and whole.summary["bit_exact"]
    )
    assert broken.learning == whole.learning
    for result in ("policy_sha256", "state_sha256"):
        assert broken.summary[result] == whole.summary[result], result
    both = [(tmp_path / run / "episodes.jsonl").read_text() for run in ("broken", "whole")]
    assert both[0] == both[1]
    if name in NODES:
        with Nodes(2, *chosen, *steps, "--output-dir", str(tmp_path / "nodes")) as nodes:
            assert [code for code, _ in nodes.wait()] == [0, 0]
        for result in ("policy_sha256", "state_sha256"):
            assert summary(tmp_path / "nodes")[result] == whole.summary[result], result


def killed_and_resumed(directory: Path, arguments: list[str]) -> Outcome:
    """A worker is killed in its third iteration or later, then the coordinator; four workers go on."""
    process = start(
        "train_parallel_timed.py", directory, *arguments, "--num-workers", "2", "--set",
        "logging.checkpoint_iterations=2",
    )  # fmt: skip
    try:
        await_lines(directory / "metrics.jsonl", 3, process)
        (fork_server,) = children(process.pid)
        subprocess.run(["kill", "-9", str(children(fork_server)[0])], check=True)
        await_lines(directory / "faults.jsonl", 2, process)  # lost, replaced
        lines = (directory / "metrics.jsonl").read_text().count("\n")
        await_lines(directory / "metrics.jsonl", lines + 4, process)  # with a checkpoint among them
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    record = (directory / "metrics.jsonl").read_text().splitlines()[0]
    each = int(record.partition('"steps_global": ')[2].partition(",")[0])
    saved = max(int(path.name[5:]) for path in (directory / "checkpoints").glob("step_*"))
    total = ["--total-timesteps", str(saved + 2 * each)]
    return train(directory, "--resume", str(directory), *total, "--num-workers", "4")


def start(script: str, directory: Path, *arguments: str) -> subprocess.Popen:
    """A run without an end; what it prints is in a file beside its directory."""
    budget = ["--total-timesteps", "1000000", "--quiet", "--output-dir", str(directory)]
    with open(f"{directory}.log", "wb") as log:
        command = [sys.executable, script, *arguments, *budget]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def await_lines(file: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 240
    while not (file.exists() and file.read_text().count("\n") >= count):
        log = Path(f"{file.parent}.log").read_text()
        assert time.monotonic() < deadline and process.poll() is None, log
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_interrupted_sequential_run_continues_exactly(tmp_path: Path) -> None:
    """The parallel one is interrupted in tests/faults."""
    arguments, broken = [*FAR, *ROWS["CartPole"]], tmp_path / "broken"
    process = start("train_timed.py", broken, *arguments, "--num-threads", "1")
    try:
        await_lines(broken / "metrics.jsonl", 2, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    lines = (broken / "metrics.jsonl").read_text().count("\n")
    total = ["--total-timesteps", str((lines + 2) * 256)]
    resumed = train_here(broken, "--resume", str(broken), *total)
    whole = train_here(tmp_path / "whole", *arguments, *total)
    assert resumed.summary["policy_sha256"] == whole.summary["policy_sha256"]
    assert resumed.learning == whole.learning


def test_another_seed_learns_something_else(tmp_path: Path) -> None:
    arguments = [*ROWS["CartPole"], "--total-timesteps", "256", "--seed"]
    runs = [train_here(tmp_path / seed, *arguments, seed) for seed in ("1", "2")]
    assert runs[0].summary["policy_sha256"] != runs[1].summary["policy_sha256"]
