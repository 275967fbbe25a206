"""A training that tests can watch and break, and whether two runs learned the same."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import held_in_memory
from parallel_ppo.records.metrics import NOT_LEARNING
from parallel_ppo.storage.json_lines import read_records
from parallel_ppo.workers import observer
from tests.conftest import ROOT
from tests.faults import injector

STEPS_PER_ITERATION = 16 * 16
SMALL = ["--env", "coinrun", "--policy", "nature", "--num-envs", "16", "--n-steps", "16",
         "--batch-size", "64", "--n-epochs", "1", "--num-workers", "2",
         "--set", "hardware.pinning=none"]  # fmt: skip
HEADER = "  -> "  # of a run, in its first lines
TOKEN = "PARALLEL_PPO_TEST_TOKEN"


class Training:
    """One start of the real command, recognisable by a token in its environment and its children's."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        plan: Path | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.temporary = log.with_suffix(".tmpdir")
        self.temporary.mkdir(exist_ok=True)
        environment = os.environ | {TOKEN: self.token, "TMPDIR": str(self.temporary)} | (variables or {})
        if plan is not None:
            environment |= {observer.VARIABLE: injector.__file__, injector.PLAN: str(plan)}
        self.log, self.held = log, set[str]()
        self.started = time.monotonic()
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "train_parallel_timed.py"), *arguments],
                stdout=file, stderr=file, env=environment, start_new_session=True,
            )  # fmt: skip

    def wait(self, timeout: float) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end after {timeout:.0f} s; see {self.log}") from None

    def pids(self) -> list[int]:
        """Of everything that carries the token, zombies included while their parent lives."""
        wanted, found = f"{TOKEN}={self.token}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def look(self) -> None:
        """Remembers what its processes hold in /dev/shm: on a shared machine, other programs come and go
        there too.
        """
        self.held |= set[str]().union(*map(held_in_memory, self.pids()))

    def left_behind(self, patience: float = 2.0) -> tuple[int, int]:
        """(processes, files) that are still there after `patience` seconds."""
        deadline = time.monotonic() + patience
        while (alive := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        new = [name for name in self.held if Path(name).exists()]
        return len(alive), len(new) + len(list(self.temporary.iterdir()))


def checked(arguments: list[str], log: Path, timeout: float = 3600, plan: Path | None = None) -> None:
    code = Training(arguments, log, plan).wait(timeout)
    assert code == 0, f"exit code {code}; see {log}"


def learning_columns(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key not in NOT_LEARNING}
        for record in read_records(run / "metrics.jsonl")
    ]


def is_identical(run: Path, reference: Path) -> bool:
    """The same iterations in the same order, none missing and none twice, with the same numbers in every
    learning column.
    """
    ours, theirs = learning_columns(run), learning_columns(reference)
    episodes = [list(read_records(place / "episodes.jsonl")) for place in (run, reference)]
    hashes = [json.loads((place / "summary.json").read_text())["policy_sha256"] for place in (run, reference)]
    return len(ours) > 0 and ours == theirs and episodes[0] == episodes[1] and hashes[0] == hashes[1]


def wait_until(training: Training, condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if training.process.poll() is not None or time.monotonic() > deadline:
            training.process.kill()
            raise AssertionError(f"see {training.log}")
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def tree(pid: int) -> list[int]:
    """Coordinator, fork_server, workers."""
    fork_server = children(pid)[:1]
    return [pid, *fork_server, *(children(fork_server[0]) if fork_server else [])]
