"""The Ray launcher on Ray's local multi-node cluster: lost nodes are left out or replaced; the hash stays the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import CARTPOLE, free_port, metrics, summary
from tests.conftest import ROOT, train

ray_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
LONG = [*CARTPOLE, "--quiet", "--total-timesteps", "102400", "--set", "logging.checkpoint_interval=1"]


def ray_node(num_cpus: int) -> dict[str, int]:
    """With ports: on a busy machine Ray's node gives up before its agents report the ports that they chose."""
    agents = "metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent"
    return {"num_cpus": num_cpus, **{f"{agent}_port": free_port() for agent in agents}}


@pytest.fixture
def cluster() -> Iterator[ray_utils.Cluster]:
    """The head has no CPU to give: it never holds a node of the training."""
    head = ray_node(num_cpus=0) | {"include_dashboard": False}
    running = ray_utils.Cluster(initialize_head=True, head_node_args=head)
    yield running
    running.shutdown()


def launch(cluster: ray_utils.Cluster, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tools" / "cluster_ray.py"), "--cpus", "1", "--output-dir",
               str(output), *arguments]  # fmt: skip
    environment = os.environ | {"RAY_ADDRESS": cluster.address, "RAY_DEDUP_LOGS": "0"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def await_true(condition: Callable[[], bool], launcher: subprocess.Popen[str], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until and launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.1)


def sessions(directory: Path) -> list[dict]:
    path = directory / "run.json"
    return json.loads(path.read_text())["sessions"] if path.exists() else []


def coordinator(directory: Path) -> int:
    return sessions(directory)[-1]["pid"]


def test_lost_nodes_and_new_ones_do_not_change_the_hash(cluster: ray_utils.Cluster, tmp_path: Path) -> None:
    """Two nodes; the coordinator of one is killed; a whole Ray node is lost; another comes."""
    run = tmp_path / "run"
    alone = train(tmp_path / "alone", *LONG)
    first, _ = cluster.add_node(**ray_node(num_cpus=1)), cluster.add_node(**ray_node(num_cpus=1))
    launcher = launch(cluster, run, "--nodes", "1-2", "--", *LONG)
    await_true(lambda: len(metrics(run)) > 20, launcher)
    os.kill(coordinator(run), signal.SIGKILL)
    await_true(lambda: len(sessions(run)) == 2, launcher)
    cluster.remove_node(first, allow_graceful=False)
    await_true(lambda: len(sessions(run)) == 3, launcher)
    cluster.add_node(**ray_node(num_cpus=1))
    await_true(lambda: len(sessions(run)) == 4, launcher)
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, output
    assert [len(session["nodes"]) for session in sessions(run)] == [2, 2, 1, 2]
    assert summary(run)["policy_sha256"] == alone.summary["policy_sha256"]


def test_input_errors_end_it_and_a_stop_saves(cluster: ray_utils.Cluster, tmp_path: Path) -> None:
    cluster.add_node(**ray_node(num_cpus=1))
    launcher = launch(cluster, tmp_path / "wrong", "--nodes", "1", "--", "--env", "NoSuch-v0")
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 2 and "no environment is called" in output
    launcher = launch(cluster, tmp_path / "run", "--nodes", "1", "--", *LONG)
    await_true(lambda: len(metrics(tmp_path / "run")) > 5, launcher)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert summary(tmp_path / "run")["exit_code"] == 75
