"""Optimizer steps that workers take by themselves: they have the bits of the coordinator's, and deaths at any
moment change nothing.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_ppo.algorithms.algorithm import Schedules
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.exits import NumbersError
from parallel_ppo.kernels import steps as kernel
from parallel_ppo.kernels.api import available
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.state import TrainingState
from parallel_ppo.training.update import Learned, learn
from parallel_ppo.workers import optimizer_steps
from parallel_ppo.workers.observer import Probe, unobserved
from parallel_ppo.workers.optimizer_steps import Steps, StepTaker
from parallel_ppo.workers.tasks import GRADIENT, Microbatch, Task
from parallel_ppo.workers.worker import Worker
from tests.conftest import small_settings, train, train_here
from tests.kernels.test_native_microbatch import filled
from tests.training.test_update import collected

pytestmark = pytest.mark.skipif(not available()[0], reason="the C library cannot be compiled here")
NUM_WORKERS = 3
SCHEDULES = Schedules(3e-3, 0.2)
LEARNED = "parameters", "first_moment", "second_moment", "step_results"


# --- one process: the coordinator's steps and the workers' ---------------------------------------------------


def updated(by_workers: bool, spoil: Callable[[TrainingState], None], **flags: Any) -> tuple[Any, ...]:
    flags = {"training__kernels": "native", "env__slice_envs": 4, **flags}
    settings = small_settings(**flags)
    state, pool, _ = collected(settings)
    assert pool.steps is not None
    if not by_workers:
        pool.steps = None
    spoil(state)
    result: Learned | str
    try:
        result = learn(state, pool, Cluster(settings.sizes), SCHEDULES, Timeline())
        columns: Any = result.columns
        tasks = [span.task for span in result.spans if span.task.kind == GRADIENT]
    except NumbersError as error:
        columns, tasks = str(error), []
    vectors = [
        vector.numpy().tobytes() for vector in (state.parameters, state.first_moment, state.second_moment)
    ]
    return vectors, columns, state.counters, tasks


CASES: dict[str, dict[str, Any]] = {
    "CartPole": {},
    "Pendulum": {"env": "Pendulum-v1", "training__normalize_observations": True},
    "stopped by the divergence": {"training__target_kl": 1e-5, "training__n_epochs": 6},
    "odd microbatches": {"training__lane_samples": 7, "training__max_grad_norm": 0.01},
    "many parameters": {"training__hidden_sizes": [256, 256], "training__max_grad_norm": 0.01},
    "torch": {"training__kernels": "torch", "training__hidden_sizes": [256, 256]},
    "a2c with RMSprop": {"training__algorithm": "a2c", "training__optimizer": "rmsprop_tf",
                         "training__n_epochs": 1, "training__batch_size": 256},
    "RND": {"curiosity__kind": "rnd", "training__max_grad_norm": 0.01, "curiosity__max_grad_norm": 0.02},
    "RND, torch": {"curiosity__kind": "rnd", "training__kernels": "torch"},
}  # fmt: skip


def nothing(state: TrainingState) -> None:
    pass


@pytest.mark.parametrize("case", CASES)
def test_workers_steps_have_the_bits_of_the_coordinators(case: str) -> None:
    ours, plain = (updated(by_workers, nothing, **CASES[case]) for by_workers in (True, False))
    assert ours == plain
    if case.startswith("stopped"):
        assert 0 < plain[1]["minibatches"] < 24 and plain[1]["kl_stopped"]


@pytest.mark.procgen
def test_microbatches_that_are_not_in_the_library_are_computed_by_the_caller() -> None:
    flags = {"env": "coinrun", "policy": "nature"}
    ours, plain = (updated(by_workers, nothing, **flags) for by_workers in (True, False))
    assert ours == plain


@pytest.mark.parametrize("flags", [{}, {"training__target_kl": 0.5}])
def test_a_gradient_that_is_not_finite_is_never_applied(flags: dict[str, Any]) -> None:
    def spoil(state: TrainingState) -> None:
        state.memory.observation[3, 9] = np.nan

    ours, plain = (updated(by_workers, spoil, **flags) for by_workers in (True, False))
    assert ours == plain
    assert "epoch 0, minibatch" in ours[1] and "environments 8 to 11" in ours[1]


# --- several processes ----------------------------------------------------------------------------------------


def finish(taker: StepTaker, task: Task, index: int) -> None:
    taker.begin(task, index)
    while taker.go_on(task) != kernel.OVER:
        pass


class Crew:
    """Processes that take steps, and a coordinator that confirms deaths before it frees claims."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.memory = worker, worker.memory
        self.steps = Steps(worker.settings, worker.memory, NUM_WORKERS, range(worker.sizes.num_slices))
        self.view = self.steps.view
        TrainingState(worker.settings, worker.memory)
        self.memory.step_rates[:] = 1.0, 1.1
        self.start_state = {name: getattr(self.memory, name).copy() for name in LEARNED}
        self.pids: list[int] = []

    def reset(self) -> None:
        for name, array in self.start_state.items():
            getattr(self.memory, name)[...] = array

    def learned(self) -> list[np.ndarray]:
        return [getattr(self.memory, name).copy() for name in LEARNED]

    def alone(self) -> list[np.ndarray]:
        """What one process learns without a fault."""
        self.reset()
        task = self.open()
        finish(StepTaker(self.worker), task._replace(detail=task.detail._replace(num_workers=1)), 0)
        return self.learned()

    def open(self) -> Task:
        return self.steps.open(0, num_scalars=3, learning_rate=1e-3)

    def start(self, task: Task, index: int, probe: Probe = unobserved) -> int:
        pid = os.fork()
        if pid == 0:
            self.worker.probe = probe
            finish(StepTaker(self.worker), task, index)
            os._exit(0)
        return pid

    def replace(self, task: Task, index: int) -> None:
        os.kill(self.pids[index], signal.SIGKILL)
        os.waitpid(self.pids[index], 0)
        self.steps.free(index)
        self.pids[index] = self.start(task, index)

    def next_death(self, seconds: float = 60) -> int:
        """Of these processes alone: other tests may have left children."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for index, pid in enumerate(self.pids):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return index
            time.sleep(0.001)
        raise AssertionError("no process ended")

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = []


def crew(**flags: Any) -> Crew:
    return Crew(filled(ActionSpec("categorical", (5,)), env__slice_envs=4, training__lane_samples=8, **flags))


def assert_equal(ours: list[np.ndarray], plain: list[np.ndarray]) -> None:
    for name, one, other in zip(LEARNED, ours, plain, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.multiprocess
def test_every_step_is_taken_once_whoever_is_killed_and_when() -> None:
    draw, workers, deaths = random.Random(1), crew(training__n_epochs=400), 0
    plain = workers.alone()
    assert (workers.memory.step_results[:, -1] == kernel.GO).all()
    try:
        for _ in range(25):
            workers.reset()
            task = workers.open()
            workers.pids = [workers.start(task, index) for index in range(NUM_WORKERS)]
            deadline = time.monotonic() + 60
            while not workers.steps.is_over():
                assert time.monotonic() < deadline, workers.memory.step_claims
                time.sleep(draw.random() * 0.004)
                if not workers.steps.is_over() and draw.random() < 0.8:
                    deaths += 1
                    workers.replace(task, draw.randrange(NUM_WORKERS))
            assert_equal(workers.learned(), plain)
            workers.close()
    finally:
        workers.close()
    assert deaths >= 10


@pytest.mark.multiprocess
@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("phase", ["gradient", "hand-over", "sum", "optimizer", "copy", "counted"])
def test_who_dies_in_the_middle_of_a_stage_leaves_nothing_behind(phase: str, ranges: int) -> None:
    workers = crew(training__hidden_sizes=[128, 128])
    workers.view.ranges = ranges
    plain = workers.alone()

    draw = random.Random(3)

    def dies(at: str, iteration: int, step: int = 0, about_to_change: Any = None) -> None:
        if at == phase and draw.random() < 0.3:
            if about_to_change is not None:
                about_to_change[: len(about_to_change) // 2] = np.nan  # torn
            os.kill(os.getpid(), signal.SIGKILL)

    workers.reset()
    task, deaths = workers.open(), 0
    workers.pids = [workers.start(task, index, dies) for index in range(NUM_WORKERS)]
    try:
        while not workers.steps.is_over():
            index = workers.next_death()
            deaths += 1
            draw.seed(deaths)  # or its successor would die at the same moment
            workers.steps.free(index)
            workers.pids[index] = workers.start(task, index, dies)
    finally:
        workers.close()
    assert deaths >= 3
    assert_equal(workers.learned(), plain)


def test_what_was_done_is_told_by_whom_and_when() -> None:
    workers = crew()
    workers.alone()
    task = workers.steps.open(7, num_scalars=3)
    finish(StepTaker(workers.worker), task, 2)
    spans, steps = workers.steps.spans(task), workers.view.steps
    assert {span.worker for span in spans} == {2}
    kinds = Counter(span.task.kind for span in spans)
    microbatches = steps * workers.view.microbatches
    assert kinds == {GRADIENT: microbatches, "sum": steps, "optimizer": steps, "copy": steps}
    assert spans[0].task == Task(GRADIENT, 0, 7, Microbatch(0, 3))
    ends = sorted((span.started, span.ended) for span in spans)
    assert all(first[1] <= second[0] for first, second in pairwise(ends))


def test_a_worker_that_claims_nothing_while_there_is_something_makes_no_progress() -> None:
    workers = crew()
    task = workers.open()
    assert workers.steps.progress(0) == workers.steps.progress(0)
    taker = StepTaker(workers.worker)
    taker.is_observed = True
    taker.begin(task, 1)
    for _ in range(workers.view.microbatches):
        assert taker.library.steps_take_part(taker.address, 1) >= 0
    assert workers.steps.progress(0) != workers.steps.progress(0)  # nothing is left for it
    assert workers.steps.progress(1) == workers.steps.progress(1)  # it holds them all
    assert taker.library.steps_take_part(taker.address, 0) == kernel.NOTHING
    workers.steps.free(1)
    assert workers.steps.progress(0) == workers.steps.progress(0)


def test_a_death_before_the_first_update_takes_nothing_away_from_it() -> None:
    workers = crew()
    for index in range(NUM_WORKERS):
        workers.steps.free(index)
    assert not workers.memory.step_claims.any()


def test_a_question_of_an_earlier_update_is_over() -> None:
    workers = crew()
    earlier = workers.open()
    workers.open()
    taker = StepTaker(workers.worker)
    taker.begin(earlier, 0)
    assert taker.go_on(earlier) == kernel.OVER


@pytest.mark.multiprocess
def test_a_death_just_before_a_wake_up_leaves_no_sleeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead worker had ended the last step and changed the futex, but not yet woken the others."""
    monkeypatch.setattr(optimizer_steps, "PATIENCE", 60_000)
    workers = crew()
    task, memory = workers.open(), workers.memory
    taker = StepTaker(workers.worker)
    taker.is_observed = True
    taker.begin(task, 1)
    for _ in range(workers.view.microbatches):
        assert taker.library.steps_take_part(taker.address, 1) >= 0
    workers.pids = [workers.start(task, 0)]
    try:
        deadline = time.monotonic() + 30
        while not memory.step_futex[0] & 1:  # it sleeps
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.1)
        memory.step_header[0] = workers.steps.end
        memory.step_futex[0] += 1
        workers.steps.free(1)
        assert workers.next_death(seconds=20) == 0
        workers.pids = []
    finally:
        workers.close()


@pytest.mark.multiprocess
def test_without_claims_messages_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64",
                 "--set", "training.kernels=torch", "--total-timesteps", "768"]  # fmt: skip
    run = train(tmp_path / "claimed", *arguments, "--num-workers", "2")
    monkeypatch.setattr(kernel, "load_steps", lambda: None)
    twin = train_here(tmp_path / "messages", *arguments)
    assert run.summary["policy_sha256"] == twin.summary["policy_sha256"]
    assert run.learning == twin.learning
