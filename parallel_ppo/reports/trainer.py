"""Starts a trainer as a separate process and follows it through its files."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from parallel_ppo.exits import InputError, RunError
from parallel_ppo.reports.runs import METRICS
from parallel_ppo.storage.files import Damaged, open_regular, open_to_append

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0
TAIL_BYTES = 8192
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)


class TrainerFailed(RunError):
    """A trainer ended with `code`. The message names its output."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code
        self.code = code if code > 0 else 128 - code


def train(line: Sequence[str], *, run_directory: Path, output: Path) -> None:
    """Run a command line that trains. Raises `TrainerFailed` unless it exits with 0."""
    child = start(line, output)
    with interrupting([child]):
        child.wait()
    check(child, run_directory, output)


def start(line: Sequence[str], output: Path, cpus: Sequence[int] | None = None) -> subprocess.Popen:
    """A command in a new session, on `cpus`. Its output is appended to the file `output`."""
    if output.is_symlink():
        raise InputError(f"{output} is a link, which could lead anywhere; remove it")
    with open(open_to_append(output), "ab") as sink:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_prepare, cpus),
        )


def check(child: subprocess.Popen, run_directory: Path, output: Path) -> None:
    if child.returncode:
        raise TrainerFailed(
            f"{run_directory} {_how_it_ended(child.returncode)}: {_last_line(output)} (see {output})",
            child.returncode,
        )


def last_progress(run_directory: Path) -> tuple[int, float]:
    """Steps and wall time of the last whole line of the log; zeros before the first."""
    try:
        row = json.loads(_tail(run_directory / METRICS).split(b"\n")[-2])
        return int(row["steps_global"]), float(row.get("wall_time") or 0.0)
    except (Damaged, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return 0, 0.0


def _tail(path: Path) -> bytes:
    with open_regular(path, 1 << 62) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES)


def _prepare(cpus: Sequence[int] | None) -> None:
    """If the parent is killed, the trainer saves and stops."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


@contextmanager
def interrupting(children: list[subprocess.Popen]) -> Iterator[None]:
    """Passes an interrupt on to the children, which have their own sessions, and waits until they have saved.

    The list may change meanwhile.
    """

    def terminate(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except BaseException:
        running = [child for child in children if child.poll() is None]
        for child in running:
            child.send_signal(signal.SIGINT)
        _wait_for(running)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_for(children: Sequence[subprocess.Popen]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"


def _last_line(output: Path) -> str:
    try:
        lines = _tail(output).decode(errors="replace").strip().splitlines()
    except Damaged as problem:
        return str(problem)
    return lines[-1].strip() if lines else "no output"
