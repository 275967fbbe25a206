"""Coordinators killed, interrupted and preempted, again and again: the end is that of an undisturbed run."""

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from parallel_ppo.storage.json_lines import read_records
from tests.faults.training import SMALL, Training, checked, is_identical, wait_until

LONG = ["--env", "coinrun", "--policy", "impala", "--num-envs", "32", "--n-steps", "128", "--batch-size",
        "1024", "--n-epochs", "12", "--num-workers", "2"]  # fmt: skip
FAR = ["--total-timesteps", str(10**9)]


class Interrupted:
    """A run that is started, signalled and looked at again and again."""

    def __init__(self, folder: Path, arguments: Sequence[str], seed: int) -> None:
        self.folder, self.arguments, self.draw = folder, arguments, random.Random(seed)
        self.run, self.log = folder / "broken", folder / "broken.log"
        self.codes = set[int]()

    def where(self) -> list[str]:
        is_there = (self.run / "config.yaml").exists()
        return ["--resume", str(self.run)] if is_there else [*self.arguments, "--output-dir", str(self.run)]

    def start(self) -> Training:
        return Training([*self.where(), *FAR], self.log)

    def signal(self, training: Training, number: signal.Signals) -> None:
        training.look()
        training.process.send_signal(number)
        self.codes.add(training.wait(60))
        assert training.left_behind() == (0, 0)

    def ends_as_if_undisturbed(self, more: int, steps_per_iteration: int) -> bool:
        reached = max((record["iteration"] for record in read_records(self.run / "metrics.jsonl")), default=0)
        length = ["--total-timesteps", str((reached + more) * steps_per_iteration)]
        checked([*self.where(), *length], self.log)
        reference = self.folder / "reference"
        checked([*self.arguments, *length, "--output-dir", str(reference)], self.folder / "reference.log")
        assert "Traceback" not in self.log.read_text()
        return is_identical(self.run, reference)


def wait_for_iteration(training: Training, metrics: Path, earlier: int | None) -> None:
    """Until this start, which writes the file anew, has recorded an iteration."""
    wait_until(training, lambda: metrics.exists() and metrics.stat().st_ino != earlier)
    size = metrics.stat().st_size
    wait_until(training, lambda: metrics.stat().st_size > size)


@pytest.mark.procgen
@pytest.mark.parametrize(
    ("times", "signals"),
    [
        (2, ["SIGKILL"]),
        (2, ["SIGUSR1", "SIGINT"]),  # SIGTERM does what SIGUSR1 does
        pytest.param(50, ["SIGKILL"], marks=pytest.mark.full),
        pytest.param(30, ["SIGTERM", "SIGUSR1"], marks=pytest.mark.full),
    ],
    ids=["killed", "preempted", "killed often", "preempted often"],
)
def test_an_interrupted_run_leaves_nothing_and_goes_on_exactly(
    times: int, signals: list[str], tmp_path: Path
) -> None:
    """Every fifth signal comes somewhere in the start, the others after an iteration of this start."""
    broken = Interrupted(tmp_path, [*SMALL, "--set", "logging.checkpoint_iterations=2"], seed=times)
    metrics = broken.run / "metrics.jsonl"
    for number in range(times):
        earlier = metrics.stat().st_ino if metrics.exists() else None
        training = broken.start()
        if number % 5 == 0:
            time.sleep(broken.draw.uniform(0.05, 6.0))
        else:
            wait_for_iteration(training, metrics, earlier)
            time.sleep(broken.draw.uniform(0.0, 4.0 if times > 5 else 0.5))
        broken.signal(training, signal.Signals[signals[number % len(signals)]])
    # A signal before the first line of Python has no handler.
    assert broken.codes <= {75, 130, *(-signal.Signals[name] for name in signals)}
    assert broken.ends_as_if_undisturbed(3, steps_per_iteration=256)


@pytest.mark.full
@pytest.mark.procgen
def test_preemption_does_not_wait_for_a_long_iteration(tmp_path: Path) -> None:
    """The state is saved as of the iteration's start."""
    broken = Interrupted(tmp_path, LONG, seed=4)
    for _ in range(5):
        training = broken.start()
        wait_until(training, lambda: (broken.run / "checkpoints" / "step_0").exists())
        time.sleep(broken.draw.uniform(6, 20))
        broken.signal(training, signal.SIGTERM)
    assert broken.codes == {75}
    assert broken.ends_as_if_undisturbed(1, steps_per_iteration=32 * 128)
