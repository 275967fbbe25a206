"""Elastic torchrun on real hosts (network namespaces): agents die, come late and return; the hash stays the same."""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.nodes import CARTPOLE, QUIET, metrics, summary
from tests.conftest import ROOT, train
from tools.network import Network, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
GAME = [*CARTPOLE, *QUIET, "--set", "training.schedule_steps=1000000"]
STORE_PORT = 29400
STORE = """\
import time
from torch.distributed import TCPStore
store = TCPStore({address!r}, {port}, is_master=True, wait_for_workers=False)
time.sleep(1e6)
"""
RENDEZVOUS = (
    "is_host={is_host},join_timeout=300,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
)


def kill_all_on(host: str) -> None:
    """Some of the processes end by themselves as soon as others are killed."""
    found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True)
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class Agents:
    """Host 0 keeps torchrun's store, and the others run one agent each; or the agent on `store_host` keeps it."""

    def __init__(
        self, network: Network, directory: Path, logs: Path, *arguments: str, store_host: int = 0
    ) -> None:
        self.network, self.directory, self.logs, self.arguments = network, directory, logs, arguments
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.ended: list[subprocess.Popen[bytes]] = []
        self.store_host, self.endpoint = store_host, f"{network.addresses[store_host]}:{STORE_PORT}"
        if store_host == 0:
            text = STORE.format(address=network.addresses[0], port=STORE_PORT)
            self.ended.append(self._on(0, "-c", text))

    def _on(self, host: int, *words: str) -> subprocess.Popen[bytes]:
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with open(self.logs / f"host-{host}.log", "ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.network.hosts[host], sys.executable, *words],
                cwd=ROOT, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start(self, host: int) -> None:
        size = len(self.network.hosts) - 1
        rendezvous = RENDEZVOUS.format(is_host=int(host == self.store_host))
        self.running[host] = self._on(
            host, "-m", "torch.distributed.run", f"--nnodes=1:{size}", "--nproc-per-node=1", "--rdzv-backend=c10d",
            "--max-restarts=1000", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=test",
            f"--rdzv-conf={rendezvous}", f"--local-addr={self.network.addresses[host]}", "--monitor-interval=0.2",
            str(ROOT / "train_ppo_distributed.py"), *self.arguments, "--output-dir", str(self.directory), "--continue",
        )  # fmt: skip

    def kill(self, host: int, *, with_its_node: bool) -> None:
        """The agent alone, or everything on its host."""
        agent = self.running.pop(host)
        if with_its_node:
            kill_all_on(self.network.hosts[host])
        else:
            agent.kill()
        self.ended.append(agent)

    def await_next_iteration(self, began: float, timeout: float = 300) -> float:
        """Seconds from `began` until a session that started later has recorded an iteration."""
        log, description = self.directory / "metrics.jsonl", self.directory / "run.json"
        while True:
            now = time.time()
            if description.exists() and log.exists() and description.stat().st_mtime > began:
                first = json.loads(description.read_text())["sessions"][-1]["first_iteration"]
                if log.stat().st_mtime > description.stat().st_mtime and len(metrics(self.directory)) > first:
                    return now - began
            assert now - began < timeout, self.report()
            assert any(agent.poll() is None for agent in self.running.values()), self.report()
            time.sleep(0.1)

    def stop(self) -> None:
        for agent in self.running.values():
            agent.terminate()
        for agent in self.running.values():
            agent.wait(120)

    def report(self) -> str:
        return "\n".join(f"{path.name}\n{path.read_text()[-3000:]}" for path in self.logs.glob("host-*.log"))

    def __enter__(self) -> "Agents":
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.network.hosts:
            kill_all_on(host)
        for process in (*self.running.values(), *self.ended):
            process.wait()


def test_agents_are_killed_and_return_and_the_hash_stays(tmp_path: Path) -> None:
    """CLUSTER_KILLS: more kills."""
    kills, run = int(os.environ.get("CLUSTER_KILLS", "2")), tmp_path / "run"
    draw = random.Random(1)
    seconds: dict[str, list[float]] = {"joined": [], "killed": [], "returned": []}
    arguments = [*GAME, "--total-timesteps", "1e9", "--set", "logging.checkpoint_interval=1"]
    with Network(5) as network, Agents(network, run, tmp_path, *arguments) as agents:

        def start(*hosts: int, event: str) -> None:
            began = time.time()
            for host in hosts:
                agents.start(host)
            seconds[event].append(agents.await_next_iteration(began))

        start(1, 2, 3, event="joined")
        start(4, event="joined")
        for number in range(kills):
            host, began = draw.choice([1, 2, 3, 4]), time.time()
            agents.kill(host, with_its_node=number % 2 == 0)
            seconds["killed"].append(agents.await_next_iteration(began))
            start(host, event="returned")
            print(f"host {host}: {seconds['killed'][-1]:.1f} s, {seconds['returned'][-1]:.1f} s", flush=True)
        agents.stop()
    for name, values in seconds.items():
        print(f"{name}: median {statistics.median(values):.1f} s, worst {max(values):.1f} s")
    found = summary(run)
    sizes = [len(session["nodes"]) for session in json.loads((run / "run.json").read_text())["sessions"]]
    assert max(sizes) == 4 and min(sizes) < 4 and len(metrics(run)) == found["iterations"]
    alone = train(tmp_path / "alone", *GAME, "--total-timesteps", str(found["env_steps"]))
    assert alone.summary["policy_sha256"] == found["policy_sha256"]


@pytest.mark.full
def test_the_agent_that_keeps_the_store_is_killed(tmp_path: Path) -> None:
    """All agents end; the run continues when they are started again, here without the host that was lost."""
    run, arguments = (
        tmp_path / "run",
        [*GAME, "--total-timesteps", "1e9", "--set", "logging.checkpoint_interval=1"],
    )
    with Network(4) as network:
        with Agents(network, run, tmp_path, *arguments, store_host=1) as agents:
            began = time.time()
            for host in (1, 2, 3):
                agents.start(host)
            agents.await_next_iteration(began)
            time.sleep(3)  # a checkpoint is written
            survivors = [agents.running[2], agents.running[3]]
            began = time.time()
            agents.kill(1, with_its_node=True)
            codes = [agent.wait(120) for agent in survivors]
            print(f"the others ended with {codes} after {time.time() - began:.1f} s")
            assert codes == [1, 1]
        with Agents(network, run, tmp_path, *arguments, store_host=2) as agents:
            began = time.time()
            for host in (2, 3):
                agents.start(host)
            agents.await_next_iteration(began)
            agents.stop()
    found = summary(run)
    assert json.loads((run / "run.json").read_text())["sessions"][-1]["first_iteration"] > 0
    assert found["world_size"] == 2
    alone = train(tmp_path / "alone", *GAME, "--total-timesteps", str(found["env_steps"]))
    assert alone.summary["policy_sha256"] == found["policy_sha256"]
