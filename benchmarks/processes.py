"""Run a contender: its output lines, its time limit, and the memory of its whole process tree."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from parallel_ppo.records.metrics import proportional_bytes

INTERVAL = 1.0
COST = 1 / 100  # of the time, at most: sampling takes time from the cores that are measured


class Outcome(NamedTuple):
    lines: list[str]
    peak_mb: float  # proportional set size of all processes: shared pages count once
    problem: str | None


def run(
    command: list[str], *, cwd: Path, environment: dict[str, str], timeout: float, wanted_lines: int | None
) -> Outcome:
    """Runs it to its end, or until it has printed `wanted_lines`; leaves no process and nothing in /dev/shm."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        memory = MemoryWatch(process.pid)
        expired = threading.Event()
        alarm = threading.Timer(timeout, lambda: (expired.set(), memory.kill_tree()))
        alarm.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if wanted_lines is not None and len(lines) >= wanted_lines:
                    break
            else:
                process.wait()
        finally:
            alarm.cancel()
            memory.close()
            memory.kill_tree()
            process.wait()
        problem = None
        if expired.is_set():
            problem = f"did not finish within {timeout:.0f} s"
        elif process.returncode and not (wanted_lines is not None and len(lines) >= wanted_lines):
            errors.seek(0)
            problem = f"exit code {process.returncode}: {last_line(errors.read())}"
    return Outcome(lines, memory.peak / 1e6, problem)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed no reason"


class MemoryWatch:
    """Samples the memory of a process tree, and remembers every process that was ever in it.

    Once a second, or less often: the kernel looks at every page, 60 ms for four processes of ordinary size.
    """

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.peak = 0
        self.seen: set[psutil.Process] = {self.root}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        pause = INTERVAL
        while not self.stop.wait(pause):
            began = time.monotonic()
            self.sample()
            pause = max(INTERVAL, (time.monotonic() - began) / COST)

    def sample(self) -> None:
        with contextlib.suppress(psutil.Error):
            self.seen |= set(self.root.children(recursive=True))
        total = 0
        for process in list(self.seen):
            with contextlib.suppress(OSError, psutil.Error):
                if process.is_running():  # not another process with the same number
                    total += proportional_bytes(process.pid)
        self.peak = max(self.peak, total)

    def close(self) -> None:
        self.stop.set()
        self.thread.join()

    def kill_tree(self) -> None:
        """Only processes that this one started, directly or not, and their files in /dev/shm."""
        with contextlib.suppress(psutil.Error):
            self.seen |= set(self.root.children(recursive=True))
        held = set[str]().union(
            *(held_in_memory(process.pid) for process in self.seen if process.is_running())
        )
        for process in list(self.seen):
            with contextlib.suppress(psutil.Error, OSError):
                if process.is_running():
                    process.send_signal(signal.SIGKILL)
        # `run` waits for the root.
        psutil.wait_procs(list(self.seen - {self.root}), timeout=10)
        for name in held:
            Path(name).unlink(missing_ok=True)


def held_in_memory(pid: int) -> set[str]:
    """Files in /dev/shm that a process has open or mapped."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        maps = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    except OSError:
        return set()
    return {name for name in (*links, *maps) if name.startswith("/dev/shm/")}


def clean_environment() -> dict[str, str]:
    """Without thread settings: every contender chooses its own."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
