"""The job script under a real SLURM: it ends, stops, requeues and cancels as documented."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import CARTPOLE, metrics, summary
from tests.cluster.slurm import Slurm, why_no_slurm
from tests.conftest import ROOT, train

pytestmark = [pytest.mark.cluster, pytest.mark.multiprocess]
SHORT = [*CARTPOLE, "--quiet", "--total-timesteps", "2048"]
LONG = [*CARTPOLE, "--quiet", "--total-timesteps", "40960", "--set", "logging.checkpoint_interval=5"]
LASTING = 100  # iterations after which a long run is certainly not over


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("alone") / "run", *LONG).summary["policy_sha256"]


def script(name: str, output: Path, arguments: list[str], *options: str) -> str:
    """As tools/launch/slurm.py writes it; two nodes with one CPU each unless said otherwise."""
    command = [sys.executable, str(ROOT / "tools" / "launch" / "slurm.py"), "--nodes", "2", "--cpus", "1",
               "--time", "30", "--name", name, "--output-dir", str(output), "--python", sys.executable,
               "--dry-run", *options, "--", *arguments]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def log(slurm: Slurm, name: str, job: str) -> str:
    return (slurm.folder / f"{name}-{job}.log").read_text()


def test_a_range_of_nodes_uses_all_nodes_and_cores(slurm: Slurm, tmp_path: Path) -> None:
    text = script("all", tmp_path / "run", SHORT, "--nodes", "1-2", "--cpus", "2")
    job = slurm.submit(text)
    assert slurm.await_state(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log(slurm, "all", job)
    found = summary(tmp_path / "run")
    assert (found["world_size"], found["num_workers"]) == (2, 2)
    assert "back into the queue: no" in log(slurm, "all", job)
    job = slurm.submit(script("one", tmp_path / "one", SHORT, "--nodes", "1", "--cpus", "2"))
    slurm.await_state(job, "COMPLETED", "FAILED")
    assert summary(tmp_path / "one")["policy_sha256"] == found["policy_sha256"]
    assert len(json.loads((tmp_path / "one" / "run.json").read_text())["machine"]["cores"]) == 2


def test_the_time_limit_requeues_and_fewer_nodes_continue(
    slurm: Slurm, undisturbed: str, tmp_path: Path
) -> None:
    job = slurm.submit(script("limit", tmp_path / "run", LONG, "--nodes", "1-2"))
    slurm.wait(lambda: len(metrics(tmp_path / "run")) > 10, "no progress")
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    try:
        slurm.run("scancel", "--batch", "--signal=USR1", job)  # what SLURM sends before the limit
        slurm.wait(lambda: "back into the queue: yes" in log(slurm, "limit", job), "not requeued")
        assert len(metrics(tmp_path / "run")) < LASTING * 3
        assert slurm.await_state(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    finally:
        slurm.run("scontrol", "update", "nodename=node2", "state=resume")
    assert slurm.state(job)["Restarts"] == "1"
    assert summary(tmp_path / "run")["world_size"] == 1
    assert summary(tmp_path / "run")["policy_sha256"] == undisturbed


def test_a_killed_task_requeues_after_a_checkpoint(slurm: Slurm, undisturbed: str, tmp_path: Path) -> None:
    job = slurm.submit(script("kill", tmp_path / "run", LONG))
    slurm.wait(lambda: len(metrics(tmp_path / "run")) > 10, "no progress")
    slurm.kill_on("node2", "train_ppo_distributed.py")
    slurm.wait(lambda: "back into the queue: yes" in log(slurm, "kill", job), "not requeued")
    assert slurm.await_state(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert summary(tmp_path / "run")["policy_sha256"] == undisturbed


def test_scancel_saves_and_cancels(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.submit(script("cancel", tmp_path / "run", LONG))
    slurm.wait(lambda: len(metrics(tmp_path / "run")) > 10, "no progress")
    slurm.run("scancel", job)
    assert slurm.await_state(job, "CANCELLED", "COMPLETED")["JobState"] == "CANCELLED"
    slurm.wait((tmp_path / "run" / "summary.json").exists, "nothing saved", 30)
    assert summary(tmp_path / "run")["stop_reason"].startswith("SIG")
    assert slurm.state(job)["Restarts"] == "0"


def test_an_input_error_is_not_requeued(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.submit(script("wrong", tmp_path / "run", [*SHORT, "--env", "NoSuch-v0"]))
    assert slurm.await_state(job, "FAILED", "COMPLETED")["JobState"] == "FAILED"
    assert "no environment is called" in log(slurm, "wrong", job)
    assert "back into the queue: no" in log(slurm, "wrong", job)


def test_two_jobs_and_array_tasks_do_not_meet(slurm: Slurm, tmp_path: Path) -> None:
    text = script("twins", tmp_path / "run", SHORT, "--sbatch=--array=1-2")
    job = slurm.submit(text)
    for task in ("1", "2"):
        slurm.await_state(f"{job}_{task}", "COMPLETED", "FAILED")
        found = summary(tmp_path / f"run-{task}")
        assert (found["world_size"], found["exit_code"]) == (2, 0)
