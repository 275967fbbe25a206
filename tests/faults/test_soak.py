"""What only time shows: growth over half an hour of killed workers."""

import os
import random
import signal
import statistics
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.training import SMALL, Training, tree

MINUTES, EVERY = 31, 20.0
MOST_GROWTH = 1.05


def sizes(pids: list[int]) -> dict[str, float] | None:
    """Of coordinator, fork server and two workers; None while one is missing."""
    try:
        processes = [psutil.Process(pid) for pid in pids]
        if len(processes) != 4 or any(process.status() == psutil.STATUS_ZOMBIE for process in processes):
            return None
        memory = [process.memory_info().rss for process in processes]
        descriptors = sum(process.num_fds() for process in processes[:2])
    except psutil.NoSuchProcess:
        return None
    return {
        "coordinator": memory[0],
        "fork server": memory[1],
        "all": sum(memory),
        "descriptors": descriptors,
    }


@pytest.mark.full
@pytest.mark.procgen
def test_nothing_grows_while_workers_are_killed(tmp_path: Path) -> None:
    draw, log = random.Random(5), tmp_path / "soak.log"
    length = ["--duration", f"{MINUTES}m", "--set", "logging.checkpoint_interval=60"]
    training = Training([*SMALL, *length, "--output-dir", str(tmp_path / "run")], log)
    samples, next_kill = [], time.monotonic() + EVERY
    while training.process.poll() is None:
        time.sleep(5)
        pids = tree(training.process.pid)
        if time.monotonic() >= next_kill and len(pids) > 2:
            os.kill(draw.choice(pids[2:]), signal.SIGKILL)
            next_kill = time.monotonic() + EVERY
        elif (sample := sizes(pids)) is not None:
            samples.append(sample)
    assert training.process.returncode == 0, log.read_text()
    tenth = len(samples) // 10
    early, late = samples[2 * tenth : 4 * tenth], samples[-2 * tenth :]
    for name in samples[0]:
        before, after = (statistics.median(sample[name] for sample in part) for part in (early, late))
        assert after <= MOST_GROWTH * before, name
    assert training.left_behind() == (0, 0)
