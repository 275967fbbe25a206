"""The contract for every algorithm: workers, a killed worker, a killed coordinator and two nodes leave no
trace.
"""

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
SHAPE = ["--num-envs", "8", "--set", "env.slice_envs=2", "--n-steps", "16", "--seed", "7",
         "--set", "logging.tensorboard=false", "--set", "training.schedule_steps=1000000"]  # fmt: skip
ENVIRONMENTS = {
    "CartPole-v1": ["--env", "CartPole-v1", "--set", "training.normalize_observations=true"],
    "coinrun": ["--env", "coinrun", "--policy", "nature"],
    "starpilot": ["--env", "starpilot", "--policy", "impoola", "--num-levels", "6"],
    "small images": ["--env", "benchmarks.peers.frames:SmallFrames-v0"],
}
MINIBATCHES = ["--batch-size", "64", "--n-epochs", "2"]
ALGORITHMS = {
    "a2c": ["--algorithm", "a2c", "--n-epochs", "1", "--batch-size", "128"],
    "a3c": ["--algorithm", "a3c", "--set", "training.num_actors=4", "--n-epochs", "1", "--batch-size", "128"],
    "impala": ["--algorithm", "impala", "--n-epochs", "1", "--batch-size", "128"],
    "appo-adamw": ["--algorithm", "appo", "--set", "training.optimizer=adamw", *MINIBATCHES],
    "ppo-lag-3": ["--set", "training.lag=3", "--set", "training.learning_rate_warmup=2000", *MINIBATCHES],
}
GENERALIZATION = {
    "ppo-plr-drac-lag-1": ["--set", "env.level_sampler=plr", "--set", "training.augmentation=crop",
                       "--set", "training.lag=1", "--batch-size", "64", "--n-epochs", "1"],
}  # fmt: skip
ADAPTIVE = {"ppo-adaptive": ["--set", "training.learning_rate_schedule=adaptive", *MINIBATCHES]}
SMALL_IMAGES = {"ppo": MINIBATCHES}
STEPS = ["--total-timesteps", "2560"]


def killed_and_resumed(directory: Path, arguments: list[str]) -> Outcome:
    """A worker is killed in its third iteration or later, then the coordinator; another number of workers
    goes on.
    """
    command = [sys.executable, "train_parallel_timed.py", *arguments, "--total-timesteps", "1000000",
    "--num-workers", "2",
               "--set", "logging.checkpoint_iterations=2", "--quiet", "--output-dir",
               str(directory)]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_lines(directory / "metrics.jsonl", 3, process)
        (fork_server,) = _children(process.pid)
        subprocess.run(["kill", "-9", str(_children(fork_server)[0])], check=True)
        _await_lines(directory / "faults.jsonl", 2, process)  # lost, replaced
        lines = (directory / "metrics.jsonl").read_text().count("\n")
        _await_lines(directory / "metrics.jsonl", lines + 4, process)  # with a checkpoint among them
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    steps = sorted(int(path.name[5:]) for path in (directory / "checkpoints").glob("step_*"))
    total = str(max(2560, steps[-1] + 256))
    return train(directory, "--resume", str(directory), "--total-timesteps", total, "--num-workers", "4")


def _await_lines(file: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_text().count("\n") >= count):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def images(name: str) -> Any:
    """On images the rest is the same: the others are left to the long tests."""
    is_long = [] if name == "impala" else [pytest.mark.full]
    return pytest.param("coinrun", name, marks=[pytest.mark.procgen, *is_long])


CASES = [("CartPole-v1", name) for name in ALGORITHMS] + [images(name) for name in ALGORITHMS]
CASES += [("small images", name) for name in SMALL_IMAGES] + [("CartPole-v1", name) for name in ADAPTIVE]
CASES += [pytest.param("starpilot", name, marks=pytest.mark.procgen) for name in GENERALIZATION]


@pytest.mark.parametrize(("env", "name"), CASES)
def test_every_algorithm_learns_the_same_bits(env: str, name: str, tmp_path: Path) -> None:
    arguments = [*SHAPE, *ENVIRONMENTS[env], *(ALGORITHMS | GENERALIZATION | ADAPTIVE | SMALL_IMAGES)[name]]
    broken = killed_and_resumed(tmp_path / "broken", arguments)
    assert broken.summary["worker_restarts"] >= 1 and broken.summary["bit_exact"]
    algorithm = name.partition("-")[0]
    assert (tmp_path / "broken" / "checkpoints" / f"{algorithm}_parallel_final.safetensors").is_file()
    steps = ["--total-timesteps", str(broken.summary["env_steps"])]
    whole = train_here(tmp_path / "whole", *arguments, *steps)
    assert broken.summary["policy_sha256"] == whole.summary["policy_sha256"]
    assert broken.learning == whole.learning
    if name == "a2c":
        return  # what nodes exchange of it is what they exchange of PPO
    with Nodes(2, *arguments, *steps, "--output-dir", str(tmp_path / "nodes")) as nodes:
        assert [code for code, _ in nodes.wait()] == [0, 0]
    assert summary(tmp_path / "nodes")["policy_sha256"] == whole.summary["policy_sha256"]
