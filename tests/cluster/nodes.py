"""Starts the nodes of a cluster as real processes, and always ends them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.conftest import ROOT

CARTPOLE = [
    "--env", "CartPole-v1", "--num-envs", "8", "--set", "env.slice_envs=2", "--n-steps", "16", "--batch-size",
    "64", "--n-epochs", "1",
    "--set", "training.normalize_observations=true", "--set", "training.normalize_rewards=true", "--seed",
    "7",
]  # fmt: skip
PROCGEN = [
    "--env", "coinrun", "--policy", "nature", "--num-envs", "8", "--set", "env.slice_envs=2", "--n-steps",
    "8", "--batch-size", "32",
    "--n-epochs", "1", "--seed", "7",
]  # fmt: skip
QUIET = ["--quiet", "--set", "logging.tensorboard=false", "--num-workers", "1"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nodes:
    """One process a node. `namespaces` puts each into its own host; `extra[rank]` are further arguments
    of one node, `variables[rank]` its environment variables.
    """

    def __init__(
        self,
        count: int,
        *arguments: str,
        address: str = "127.0.0.1",
        port: int | None = None,
        namespaces: list[str] | None = None,
        extra: dict[int, list[str]] | None = None,
        ranks: list[int] | None = None,
        variables: dict[int, dict[str, str]] | None = None,
    ) -> None:
        place = ["--nnodes", str(count), "--master-addr", address, "--master-port", str(port or free_port())]
        self.processes: list[subprocess.Popen[str]] = []
        for index, rank in enumerate(ranks if ranks is not None else range(count)):
            prefix = ["ip", "netns", "exec", namespaces[index]] if namespaces else []
            self.processes.append(subprocess.Popen(
                [*prefix, sys.executable, str(ROOT / "train_ppo_distributed.py"), *QUIET, *arguments, *place,
                "--node-rank", str(rank),
                 *(extra or {}).get(index, [])],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                env={key: value for key, value in os.environ.items() if key not in ("RANK",
                    "GLOO_SOCKET_IFNAME")}
                | (variables or {}).get(index, {}),
            ))  # fmt: skip

    def __enter__(self) -> "Nodes":
        return self

    def wait(self, timeout: float = 240, but: int | None = None) -> list[tuple[int, str]]:
        """(exit code, what it said on stderr) of each node, except `but`."""
        until, results = time.monotonic() + timeout, []
        for index, process in enumerate(self.processes):
            if index != but:
                _, errors = process.communicate(timeout=max(0.1, until - time.monotonic()))
                results.append((process.returncode, errors.strip()))
        return results

    def await_iterations(self, directory: Path, number: int, timeout: float = 240) -> None:
        until = time.monotonic() + timeout
        while len(metrics(directory)) < number:
            assert time.monotonic() < until and all(p.poll() is None for p in self.processes), "no progress"
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def metrics(directory: Path) -> list[dict[str, Any]]:
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def learning(directory: Path) -> list[dict[str, Any]]:
    from parallel_ppo.records.metrics import NOT_LEARNING

    return [
        {key: value for key, value in row.items() if key not in NOT_LEARNING} for row in metrics(directory)
    ]


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "summary.json").read_text())
