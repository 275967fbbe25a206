"""Coordinators killed, interrupted and preempted, again and again; the end is that of an undisturbed run."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos_training import (
    HEADER,
    SMALL,
    STEPS_PER_ITERATION,
    Report,
    Training,
    checked,
    is_identical,
    spread,
    wait_until,
)

from parallel_ppo.storage.json_lines import read_records


def interrupt_repeatedly(
    folder: Path, *, times: int, seed: int, send: Callable[[int], signal.Signals]
) -> Report:
    """Starts, signals at a random instant, looks at what is left, resumes; then runs to the end and compares.

    Every fifth signal comes somewhere in the start, the others after at least one iteration of this start.
    """
    draw, run = random.Random(seed), folder / "broken"
    every = ["--set", "logging.checkpoint_iterations=2"]
    far, log = ["--total-timesteps", str(10**9)], folder / "broken.log"
    processes = files = starts_again = 0
    codes: dict[str, int] = {}
    gone: list[float] = []
    for number in range(times):
        is_there = (run / "config.yaml").exists()
        where = ["--resume", str(run)] if is_there else [*SMALL, *every, "--output-dir", str(run)]
        starts_again += not is_there
        before_start = _num_lines(log)
        training = Training([*where, *far], log)
        if number % 5 == 0:
            time.sleep(draw.uniform(0.05, 6.0))
        else:
            _wait_for_iteration(training, run, log, before_start)
            time.sleep(draw.uniform(0.0, 4.0))
        training.look()
        before = time.monotonic()
        os.kill(training.process.pid, send(number))
        code = training.wait(60)
        gone.append(time.monotonic() - before)
        codes[str(code)] = codes.get(str(code), 0) + 1
        left = training.left_behind()
        processes, files = processes + left[0], files + left[1]
    reached = max([record["iteration"] for record in read_records(run / "metrics.jsonl")], default=0)
    length = ["--total-timesteps", str((reached + 3) * STEPS_PER_ITERATION)]
    checked(
        (
            ["--resume", str(run), *length]
            if (run / "config.yaml").exists()
            else [*SMALL, *length, "--output-dir", str(run)]
        ),
        log,
    )
    checked([*SMALL, *length, "--output-dir", str(folder / "reference")], folder / "reference.log")
    text = log.read_text()
    return {
        "signals": times, "exit_codes": codes, "fresh_starts": starts_again, "iterations": reached + 3,
        "processes_left": processes, "files_left": files, "gone_s": spread(gone),
        "identical": is_identical(run, folder / "reference"), "tracebacks": text.count("Traceback"),
    }  # fmt: skip


def _num_lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def _wait_for_iteration(training: Training, run: Path, log: Path, before: int) -> None:
    """Until this start has recorded an iteration: its header stands in the log, and the metrics grow
    after that.
    """
    wait_until(training, lambda: HEADER in "".join(log.read_text().splitlines()[before:]))
    metrics = run / "metrics.jsonl"
    size = metrics.stat().st_size
    wait_until(training, lambda: metrics.stat().st_size > size)


def kill_coordinators(folder: Path, *, times: int, seed: int = 2) -> Report:
    return interrupt_repeatedly(folder, times=times, seed=seed, send=lambda number: signal.SIGKILL)


def preempt(folder: Path, *, times: int, seed: int = 3) -> Report:
    """SIGTERM and SIGUSR1 in turn."""
    kinds = (signal.SIGTERM, signal.SIGUSR1)
    return interrupt_repeatedly(folder, times=times, seed=seed, send=lambda number: kinds[number % 2])


def preempt_long_iteration(folder: Path, *, times: int, seed: int = 4) -> Report:
    """SIGTERM in the middle of iterations that take many seconds; the state is saved as of the
    iteration's start.
    """
    draw, run = random.Random(seed), folder / "long"
    shape = ["--env", "coinrun", "--policy", "impala", "--num-envs", "32", "--n-steps", "128", "--batch-size",
    "1024",
             "--n-epochs", "12", "--num-workers", "2"]  # fmt: skip
    far = ["--total-timesteps", str(10**9)]
    gone, codes = [], []
    for _ in range(times):
        where = ["--resume", str(run)] if run.exists() else [*shape, "--output-dir", str(run)]
        training = Training([*where, *far], folder / "long.log")
        wait_until(training, lambda: HEADER in training.log.read_text().rpartition("\x1c")[2])  # noqa: B023
        time.sleep(draw.uniform(3, 18))
        with open(folder / "long.log", "a") as file:
            file.write("\x1c")
        before = time.monotonic()
        training.process.terminate()
        codes.append(training.wait(60))
        gone.append(time.monotonic() - before)
    reached = max([record["iteration"] for record in read_records(run / "metrics.jsonl")], default=0)
    length = ["--total-timesteps", str((reached + 1) * 32 * 128)]
    checked(["--resume", str(run), *length], folder / "long.log")
    checked([*shape, *length, "--output-dir", str(folder / "reference")], folder / "reference.log")
    seconds = [record["t_iter"] for record in read_records(folder / "reference" / "metrics.jsonl")]
    return {"signals": times, "exit_codes": codes, "gone_s": spread(gone), "iteration_s": spread(seconds),
            "identical": is_identical(run, folder / "reference")}  # fmt: skip
