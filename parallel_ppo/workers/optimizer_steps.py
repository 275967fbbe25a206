"""The optimizer steps of an update: workers claim microbatches, add them up, judge the norm, run the optimizer and go
on with the next minibatch (`kernels/steps.c`). A worker gets one message for the whole update.

A stage that C cannot perform for these settings is performed here. With a lag, a worker that finds no item
collects meanwhile. A3C takes its steps in turn, and without a C library nothing can be claimed: then the
coordinator adds up and steps (`training/optimizer_steps.py`).
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parallel_ppo.algorithms.optimizers import ADAM_BETAS, OPTIMIZERS
from parallel_ppo.kernels import steps as kernel
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.settings.schema import Settings, TrainingSettings
from parallel_ppo.workers.gradient_parts import StepNumbers, gradient_parts, step_blocks, sum_blocks
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.observer import unobserved
from parallel_ppo.workers.tasks import GRADIENT, TAKE_STEPS, Microbatch, Span, StepsPlan, Task
from parallel_ppo.workers.worker import Worker

PATIENCE = 1000  # milliseconds after which a waiting worker looks up
RANGE_ADDITIONS = 1 << 21  # fewer are not worth another range
STAGE_NAMES = {kernel.SUM: "sum", kernel.OPTIMIZER: "optimizer", kernel.COPY: "copy"}
LEARNED = "parameters", "first_moment", "second_moment"


def make_steps(settings: Settings, memory: Memory, num_workers: int, slices: range) -> "Steps | None":
    """None if the coordinator takes the steps."""
    if settings.sizes.num_actors or kernel.load_steps() is None:
        return None
    return Steps(settings, memory, num_workers, slices)


def _library() -> ctypes.CDLL:
    library = kernel.load_steps()
    assert library is not None, "the coordinator has the C library and this process has not"
    return library


def _view(settings: Settings, memory: Memory) -> Any:
    training, sizes = settings.training, settings.sizes
    microbatch_sizes = np.array(sizes.microbatch_sizes, np.int64)
    arrays = {
        "header": memory.step_header,
        "futex": memory.step_futex,
        "claims": memory.step_claims,
        "microbatch_statistics": memory.microbatch_statistics,
        "gradient": memory.gradient,
        "squares": memory.gradient_squares,
        "scalars": memory.step_scalars,
        "rates": memory.step_rates,
        "results": memory.step_results,
        "times": memory.step_times,
        "rows": memory.step_rows,
        "microbatch_sizes": microbatch_sizes,
    }
    view = kernel.StepsView(
        **{name: array.ctypes.data for name, array in arrays.items()},
        now=tuple(getattr(memory, name).ctypes.data for name in LEARNED),
        next=tuple(array.ctypes.data for array in memory.stepped),
        parameters=len(memory.parameters),
        num_scalars=memory.step_scalars.shape[1],
        steps=len(memory.step_rates),
        all_microbatches=sizes.num_microbatches,
        slices=sizes.num_slices,
        samples=memory.step_rows.shape[2],
        minibatches=sizes.num_minibatches,
        slice_samples=sizes.slice_samples,
        beta1=ADAM_BETAS[0],
        beta2=ADAM_BETAS[1],
        epsilon=training.adam_eps,
        adapts=training.learning_rate_schedule == "adaptive",
        has_target=training.target_kl is not None,
        has_exchange=settings.cluster.nnodes > 1,
    )
    for name, _ in kernel.StepsView._fields_:  # members with the names of settings have their values
        if name in TrainingSettings.model_fields and (value := getattr(training, name)) is not None:
            setattr(view, name, value)
    view.batch_size = sizes.batch_size
    for own, part in zip(view.parts, gradient_parts(memory, sizes), strict=False):
        own.gradients = part.microbatches.data_ptr()
        own.first, own.end, own.per_slice = part.first, part.end, part.per_slice
    view.parts[0].max_norm, view.parts[1].max_norm = training.max_grad_norm, settings.curiosity.max_grad_norm
    view.parts[1].learning_rate = settings.curiosity.learning_rate
    view.kept = microbatch_sizes  # as long as the view
    return view


class Steps:
    """The coordinator's side."""

    def __init__(self, settings: Settings, memory: Memory, num_workers: int, slices: range) -> None:
        self.settings, self.memory, self.num_workers = settings, memory, num_workers
        self.library, self.view = _library(), _view(settings, memory)
        self.address, per_slice = ctypes.addressof(self.view), len(settings.sizes.microbatch_sizes)
        self.microbatches = range(slices.start * per_slice, slices.stop * per_slice)
        self.view.first_microbatch, self.view.microbatches = self.microbatches.start, len(self.microbatches)
        blocks, additions = len(memory.gradient_squares), len(self.microbatches) * len(memory.parameters)
        self.view.ranges = max(1, min(num_workers, blocks, additions // RANGE_ADDITIONS))
        self.view.first = self.end = 1  # earlier rounds are those of memory that no process has touched
        memory.microbatch_gradient[self.microbatches.start : self.microbatches.stop] = (
            0  # the gaps between parameters stay 0
        )

    def open(
        self,
        iteration: int,
        *,
        num_scalars: int,
        sums_microbatches: bool = True,
        steps_before: int = 0,
        learning_rate: float = 0.0,
    ) -> Task:
        """Rows, scalars and rates are written. Returns what each worker is asked."""
        view, memory = self.view, self.memory
        memory.step_results[:, -1] = np.nan
        memory.step_times[:, 2] = -1
        view.first, self.end = self.end, self.end + kernel.NUM_STAGES * view.steps
        self.library.steps_open(self.address)
        microbatches = self.microbatches.start, self.microbatches.stop
        plan = StepsPlan(
            view.first,
            self.num_workers,
            view.ranges,
            microbatches,
            sums_microbatches,
            num_scalars,
            steps_before,
            learning_rate,
        )
        return Task(TAKE_STEPS, 0, iteration, plan)

    def is_over(self) -> bool:
        return int(self.memory.step_header[0]) >= self.end

    def awaits_exchange(self) -> bool:
        """The sums of this node are there; those of the others are missing."""
        return self.library.steps_awaits_exchange(self.address)

    def finish_exchange(self) -> None:
        self.library.steps_exchanged(self.address)

    def free(self, worker: int) -> None:
        """Items that this worker, confirmed dead, has claimed and not done may be claimed again."""
        self.library.steps_free(self.address, worker)

    def progress(self, worker: int) -> object:
        """Changes on every call while the worker makes progress, or has nothing to do."""
        number = int(self.memory.step_header[0])
        stage = (number - self.view.first) % kernel.NUM_STAGES
        claims = self.memory.step_claims[
            : self.view.microbatches if stage == kernel.MICROBATCHES else self.view.ranges
        ]
        held = np.flatnonzero(claims == (number << kernel.ITEM_BITS | worker << 1)).tolist()
        is_idle = stage == kernel.EXCHANGE or bool(np.all(claims >> kernel.ITEM_BITS >= number))
        if not self.is_over() and not held and is_idle:
            return time.monotonic()
        return number, held

    @property
    def times(self) -> np.ndarray:
        """[steps, items, TIMES] of the last update; the holder of an item that was not needed is -1."""
        steps, items = self.view.steps, self.view.microbatches + 3 * self.view.ranges
        return self.memory.step_times[: steps * items].reshape(steps, items, kernel.TIMES)

    def longest_microbatch(self) -> float:
        began, ended, worker = np.moveaxis(self.times[:, : self.view.microbatches], 2, 0)
        return float(np.max((ended - began)[worker >= 0], initial=0.0))

    def spans(self, task: Task) -> list[Span]:
        """The workers' items in the steps that are over."""
        times = self.times
        step, place = np.nonzero(times[:, :, 2] >= 0)
        began, ended, worker = times[step, place].T.tolist()
        tasks = self._items(task, step.tolist(), place.tolist())
        return [
            Span(int(who), what, first, last)
            for who, what, first, last in zip(worker, tasks, began, ended, strict=True)
        ]

    def _items(self, task: Task, steps: Sequence[int], places: Sequence[int]) -> Iterator[Task]:
        names = list(STAGE_NAMES.values())
        for step, place in zip(steps, places, strict=True):
            microbatch = Microbatch(step, task.detail.num_scalars)
            if place < self.view.microbatches:
                yield Task(GRADIENT, self.microbatches.start + place, task.iteration, microbatch)
            else:
                stage, number = divmod(place - self.view.microbatches, self.view.ranges)
                yield Task(names[stage], number, task.iteration, microbatch)


class StepTaker:
    """A worker's side. If every moment is observed, each item is done from here instead of in C."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.memory, self.settings = worker, worker.memory, worker.settings
        self.library, self.view = _library(), _view(worker.settings, worker.memory)
        self.address = ctypes.addressof(self.view)
        self.is_observed = worker.probe is not unobserved
        if worker.native_microbatch is not None:
            self.view.microbatch = worker.native_microbatch.address
        self.vectors = tuple(self.memory.tensor("stepped"))
        self.native = self._native_stages()

    def _native_stages(self) -> set[int]:
        """The stages that C performs. They follow from the settings: native and torch sums of squares differ."""
        training, stages = self.settings.training, {kernel.COPY}
        if self.worker.native_microbatch is not None:
            stages.add(kernel.MICROBATCHES)
        if training.kernels == "native":
            stages.add(kernel.SUM)
            if OPTIMIZERS[training.optimizer].is_native:
                stages.add(kernel.OPTIMIZER)
        return stages

    def begin(self, task: Task, index: int) -> None:
        view, plan = self.view, task.detail
        view.first, view.ranges, view.holders, view.holder = plan.first, plan.ranges, plan.num_workers, index
        view.first_microbatch, view.microbatches = (
            plan.microbatches[0],
            plan.microbatches[1] - plan.microbatches[0],
        )
        view.parts[0].learning_rate = plan.learning_rate
        view.packed_step, view.spin_seconds, view.opened_exchange = -1, kernel.MOST_SPIN, 0
        by_python = {
            stage for stage in range(kernel.NUM_STAGES) if self.is_observed or stage not in self.native
        }
        if not plan.sums_microbatches:
            by_python.add(kernel.SUM)
        view.python_stages = sum(1 << stage for stage in by_python)
        if self.worker.native_microbatch is not None:
            rollouts = self.worker.rollout_columns
            view.rollout = rollouts[task.iteration % len(rollouts)].address

    def go_on(self, task: Task, *, waits: bool = True) -> int:
        """For a while. Returns OVER, AGAIN, EXCHANGE_OPENED, or NOTHING if it should not wait for an item."""
        item = self.library.steps_take_part(self.address, PATIENCE if waits else 0)
        if item < 0:
            return item
        self._perform(task, item)
        self.library.steps_finish(self.address, item)
        self.worker.probe("counted", task.iteration)
        return kernel.AGAIN

    def _perform(self, task: Task, item: int) -> None:
        plan, worker = task.detail, self.worker
        step, stage = divmod(self.view.round - self.view.first, kernel.NUM_STAGES)
        if stage == kernel.MICROBATCHES:
            microbatch = Microbatch(step, plan.num_scalars)
            worker.run(Task(GRADIENT, self.view.first_microbatch + item, task.iteration, microbatch))
            worker.probe("hand-over", task.iteration, 1)
            return
        number = len(self.memory.gradient_squares)
        blocks = range(item * number // plan.ranges, (item + 1) * number // plan.ranges)
        if self.is_observed:
            written = {
                kernel.SUM: self.memory.gradient,
                kernel.OPTIMIZER: self.memory.stepped[0],
                kernel.COPY: self.memory.parameters,
            }[stage]
            span = slice(blocks.start * BLOCK, blocks.stop * BLOCK)
            worker.probe(STAGE_NAMES[stage], task.iteration, step, written[span])
        if stage == kernel.SUM and not plan.sums_microbatches:
            return
        if stage in self.native:
            self.library.steps_perform(self.address, item)
        elif stage == kernel.SUM:
            sum_blocks(self.memory, self.settings, blocks, range(*plan.microbatches))
        else:
            self._step(plan, step, item, blocks)

    def _step(self, plan: StepsPlan, step: int, item: int, blocks: range) -> None:
        """The optimizer, on some blocks, into scratch."""
        result = np.empty(self.memory.step_results.shape[1])
        if not self.library.steps_judge(self.address, item, result.ctypes.data):
            return
        span = slice(blocks.start * BLOCK, blocks.stop * BLOCK)
        for vector, name in zip(self.vectors, LEARNED, strict=True):
            vector[span] = self.memory.tensor(name)[span]
        *_, norm, predictor_norm, learning_rate, _ = result.tolist()
        numbers = StepNumbers(plan.steps_before + step + 1, learning_rate, norm, predictor_norm)
        step_blocks(self.memory, self.settings, blocks, self.vectors, numbers)
