"""Claims in shared memory: every task is done, exactly by whom the words say, whoever is killed and when."""

import mmap
import os
import random
import select
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_ppo.kernels.rounds import ITEM_BITS, load_rounds
from parallel_ppo.workers.rounds import Rounds
from parallel_ppo.workers.tasks import Gradient, Reduce
from tests.conftest import train

LIBRARY = load_rounds()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the C library cannot be compiled here")
NUM_WORKERS, NUM_ITEMS = 3, 11
FIELDS = {"round_header": (1, "i8"), "round_bell": (1, "u4"), "round_kind": (2, "i8"),
          "round_tasks": ((NUM_ITEMS, 4), "i8"), "round_scalars": (32, "f8"),
          "round_claims": (NUM_ITEMS, "i8"), "round_times": ((NUM_ITEMS, 2), "f8"),
          "result": (NUM_ITEMS, "f8")}  # fmt: skip


def shared() -> Any:
    arrays = {}
    for name, (shape, dtype) in FIELDS.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(mmap.mmap(-1, 4096), dtype, count).reshape(shape)
    return SimpleNamespace(**arrays)


def make(memory: Any) -> Rounds:
    assert LIBRARY is not None
    return Rounds(memory, NUM_WORKERS, LIBRARY)


def gradients(number: int, count: int = NUM_ITEMS) -> list[Gradient]:
    return [Gradient(lane, number, 0, 0, (0.5, float(number))) for lane in range(count)]


def expected(task: Gradient) -> float:
    return task.scalars[0] * task.scalars[1] * 1000 + task.lane


@needs_library
def test_who_was_held_up_since_an_earlier_round_claims_nothing_that_a_death_has_freed() -> None:
    memory = shared()
    rounds = make(memory)
    rounds.open(gradients(1))
    earlier = memory.round_header.copy()
    for _ in range(NUM_ITEMS):
        rounds.library.rounds_finish(rounds.header, rounds.claims, rounds._next(0))
    rounds.open(gradients(2))
    assert rounds._next(1) >= 0
    rounds.free(1)
    late = rounds.library.rounds_next(earlier.ctypes.data, rounds.bell, rounds.claims, 2, NUM_WORKERS, 1)
    assert late == -1
    assert {rounds._next(0) for _ in range(NUM_ITEMS)} == set(range(NUM_ITEMS))


class Crew:
    """Processes that take part, and a coordinator that confirms deaths before it frees claims."""

    def __init__(self) -> None:
        self.memory = shared()
        self.rounds = make(self.memory)
        self.ready, self.told = os.pipe()
        self.pids = [self.start(worker) for worker in range(NUM_WORKERS)]

    def start(self, worker: int) -> int:
        pid = os.fork()
        if pid == 0:
            while True:
                make(self.memory).take_part(worker, self.perform, self.counted)
                time.sleep(0.0005)  # not begun, or over

        return pid

    def perform(self, task: Gradient | Reduce) -> None:
        assert isinstance(task, Gradient)
        self.memory.result[task.lane] = np.nan
        time.sleep(random.random() * 0.0005)
        self.memory.result[task.lane] = expected(task)

    def counted(self, task: Gradient | Reduce, is_last: bool) -> None:
        if is_last:
            os.write(self.told, b".")

    def replace(self, worker: int) -> None:
        os.kill(self.pids[worker], signal.SIGKILL)
        os.waitpid(self.pids[worker], 0)
        self.rounds.free(worker)
        self.pids[worker] = self.start(worker)

    def wait(self, seconds: float) -> None:
        if select.select([self.ready], [], [], seconds)[0]:
            os.read(self.ready, 4096)

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@needs_library
@pytest.mark.multiprocess
def test_every_task_is_done_whoever_is_killed_and_when() -> None:
    draw, crew, deaths = random.Random(1), Crew(), 0
    try:
        for number in range(1, 151):
            tasks, deadline = gradients(number, draw.randint(1, NUM_ITEMS)), time.monotonic() + 60
            crew.rounds.open(tasks)
            while not crew.rounds.is_done():
                assert time.monotonic() < deadline, crew.memory.round_claims
                crew.wait(draw.random() * 0.003)
                if draw.random() < 0.3:
                    deaths += 1
                    crew.replace(draw.randrange(NUM_WORKERS))
            assert crew.memory.result[: len(tasks)].tolist() == [expected(task) for task in tasks]
            assert [span.task for span in crew.rounds.spans(tasks)] == tasks
    finally:
        crew.close()
    assert deaths > 20


@needs_library
def test_a_claim_is_freed_for_its_holder_alone_and_a_done_one_never() -> None:
    memory = shared()
    rounds = make(memory)
    rounds.open(gradients(1))
    claimed = [rounds._next(worker) for worker in (0, 1, 2, 0)]
    assert claimed == [0, 3, 7, 1]  # each its own share first
    rounds.library.rounds_finish(rounds.header, rounds.claims, 0)
    rounds.free(0)
    assert (memory.round_claims >> ITEM_BITS).tolist() == [1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    others = [rounds._next(2) for _ in range(8)]
    assert others == [8, 9, 10, 6, 5, 4, 2, 1]  # then the others' last
    assert not rounds.is_done()


@needs_library
def test_a_worker_that_claims_nothing_while_there_is_something_makes_no_progress() -> None:
    rounds = make(shared())
    rounds.open(gradients(1, 2))
    assert rounds.progress(0) == rounds.progress(0)
    rounds._next(1), rounds._next(1)
    assert rounds.progress(0) != rounds.progress(0)  # nothing is left for it
    assert rounds.progress(1) == rounds.progress(1)  # it holds two
    rounds.close()
    assert rounds.progress(1) == rounds.progress(1)  # it should leave


@pytest.mark.multiprocess
def test_without_the_library_messages_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64",
                 "--set", "training.kernels=torch", "--num-workers", "2",
                 "--total-timesteps", "768"]  # fmt: skip
    run = train(tmp_path / "shared", *arguments)
    monkeypatch.setenv("PARALLEL_PPO_KERNEL_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("CC", "false")
    twin = train(tmp_path / "messages", *arguments)
    assert run.summary["policy_sha256"] == twin.summary["policy_sha256"]
    assert run.learning == twin.learning
