"""All optimizer steps of an update without the coordinator: workers claim lanes, sum them, judge the norm,
run Adam and go on with the next minibatch (`kernels/steps.c`). One question for the whole update, one answer.

Where this does not apply (`native_parts.py`), the coordinator takes each step itself (`rounds.py`).
"""

import ctypes
import time
from collections.abc import Iterator, Sequence

import numpy as np

from parallel_ppo.algorithms.optimizers import ADAM_BETAS
from parallel_ppo.kernels import steps as kernel
from parallel_ppo.kernels.rounds import ITEM_BITS
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.native_parts import workers_step
from parallel_ppo.workers.observer import unobserved
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import Apply, Gradient, Reduce, TakeSteps
from parallel_ppo.workers.worker import Worker

PATIENCE = 1000  # milliseconds after which a waiting worker looks up
RANGE_ADDITIONS = 1 << 21  # fewer are not worth another range
STAGE_NAMES = {kernel.SUM: "sum", kernel.ADAM: "adam", kernel.COPY: "copy"}


def make_steps(settings: Settings, memory: Memory, num_workers: int) -> "Steps | None":
    """None where the coordinator takes the steps."""
    return Steps(settings, memory, num_workers) if workers_step(settings, len(memory.parameters)) else None


def _view(settings: Settings, memory: Memory) -> kernel.StepsView:
    training, shape = settings.training, settings.shape
    sizes = np.array(shape.lane_sizes, np.int64)
    stepped = [row.ctypes.data for row in memory.stepped]
    arrays = (
        memory.step_header, memory.step_bell, memory.step_claims, memory.lane_gradient,
        memory.lane_statistics, memory.gradient, memory.gradient_squares, memory.parameters,
        memory.first_moment, memory.second_moment,
    )  # fmt: skip
    plan = memory.step_scalars, memory.step_rates, memory.step_results, memory.step_times, memory.step_rows
    numbers = len(memory.parameters), memory.step_scalars.shape[1], len(memory.step_rates), shape.num_lanes
    kl = training.target_kl
    view = kernel.StepsView(
        *(array.ctypes.data for array in arrays), *stepped, *(array.ctypes.data for array in plan),
        None, None, sizes.ctypes.data, *numbers, 1, len(sizes), shape.num_slices,
        memory.step_rows.shape[2], shape.num_minibatches, shape.slice_samples, training.max_grad_norm,
        kl or 0.0, shape.batch_size, *ADAM_BETAS, training.adam_eps, kl is not None,
    )  # fmt: skip
    view.kept = sizes  # as long as the view
    return view


class Steps:
    """The coordinator's side."""

    def __init__(self, settings: Settings, memory: Memory, num_workers: int) -> None:
        self.settings, self.memory, self.num_workers = settings, memory, num_workers
        self.library, self.view = kernel.load_steps(), _view(settings, memory)
        self.address = ctypes.addressof(self.view)
        blocks, additions = len(memory.gradient_squares), settings.shape.num_lanes * len(memory.parameters)
        self.view.ranges = max(1, min(num_workers, blocks, additions // RANGE_ADDITIONS))
        self.view.first = self.end = 1  # rounds before are those of memory that nobody has touched
        memory.lane_gradient.fill(0)  # what lies between the parameters stays 0

    def open(self, iteration: int, num_scalars: int) -> TakeSteps:
        """Rows, scalars and rates are written; returns what each worker is asked."""
        view, memory = self.view, self.memory
        memory.step_results[:, -1] = np.nan
        memory.step_times[:, 2] = -1
        view.first, self.end = self.end, self.end + kernel.NUM_STAGES * view.steps
        self.library.steps_open(self.address)
        return TakeSteps(view.first, iteration, self.num_workers, view.ranges, num_scalars)

    def is_over(self) -> bool:
        return int(self.memory.step_header[0]) >= self.end

    def free(self, worker: int) -> None:
        """What this worker, confirmed dead, has claimed and not done may be claimed again."""
        self.library.steps_free(self.address, worker)

    def progress(self, worker: int) -> object:
        """Is another at each call as long as the worker does what there is to do."""
        number = int(self.memory.step_header[0])
        stage = (number - self.view.first) % kernel.NUM_STAGES
        claims = self.memory.step_claims[: self.view.lanes if stage == kernel.LANES else self.view.ranges]
        held = np.flatnonzero(claims == (number << ITEM_BITS | worker << 1)).tolist()
        if not self.is_over() and not held and bool(np.all(claims >> ITEM_BITS >= number)):
            return time.monotonic()
        return number, held

    @property
    def times(self) -> np.ndarray:
        """[steps, items, TIMES] of the last update; nobody (-1) did what was not to be done."""
        steps, items = self.view.steps, self.view.lanes + 3 * self.view.ranges
        return self.memory.step_times[: steps * items].reshape(steps, items, kernel.TIMES)

    def longest_lane(self) -> float:
        began, ended, worker = np.moveaxis(self.times[:, : self.view.lanes], 2, 0)
        return float(np.max((ended - began)[worker >= 0], initial=0.0))

    def spans(self, task: TakeSteps) -> list[Span]:
        """Who did what in the steps that are over."""
        times = self.times
        step, place = np.nonzero(times[:, :, 2] >= 0)
        began, ended, worker = times[step, place].T.tolist()
        tasks = self._tasks(task, step.tolist(), place.tolist())
        return [
            Span(int(who), what, first, last)
            for who, what, first, last in zip(worker, tasks, began, ended, strict=True)
        ]

    def _tasks(
        self, task: TakeSteps, steps: Sequence[int], places: Sequence[int]
    ) -> Iterator[Gradient | Reduce | Apply]:
        lanes, ranges, blocks = self.view.lanes, self.view.ranges, len(self.memory.gradient_squares)
        bounds = [index * blocks // ranges for index in range(ranges + 1)]
        scalars = [tuple(row) for row in self.memory.step_scalars[:, : task.num_scalars].tolist()]
        for step, place in zip(steps, places, strict=True):
            if place < lanes:
                epoch, minibatch = divmod(step, self.view.minibatches)
                yield Gradient(place, task.iteration, epoch, minibatch, scalars[step])
                continue
            stage, index = divmod(place - lanes, ranges)
            span = bounds[index], bounds[index + 1]
            yield Apply(*span) if stage else Reduce(*span, 0, lanes)


class StepTaker:
    """A worker's side. Where every moment is watched, each item is done from here instead of in C."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.memory, self.view = worker, worker.memory, _view(worker.settings, worker.memory)
        self.library, self.address = kernel.load_steps(), ctypes.addressof(self.view)
        self.view.asks = worker.reach is not unobserved
        self.view.lane = None if worker.native_lane is None else worker.native_lane.address

    def begin(self, task: TakeSteps, index: int) -> None:
        view = self.view
        view.first, view.ranges, view.holders, view.holder = task.first, task.ranges, task.num_workers, index
        view.packed_step, view.watch = -1, kernel.MOST_WATCH
        if self.worker.native_lane is not None:
            slabs = self.worker.lane_slabs
            view.slab = slabs[task.iteration % len(slabs)].address

    def go_on(self, task: TakeSteps) -> bool:
        """For a while; False when all steps are over."""
        item = self.library.steps_take_part(self.address, PATIENCE)
        if item >= 0:
            self._perform(task, item)
            self.library.steps_finish(self.address, item)
            self.worker.reach("counted", task.iteration)
        return item != kernel.OVER

    def _perform(self, task: TakeSteps, item: int) -> None:
        step, stage = divmod(self.view.round - self.view.first, kernel.NUM_STAGES)
        if stage == kernel.LANES:
            epoch, minibatch = divmod(step, self.view.minibatches)
            scalars = tuple(self.memory.step_scalars[step, : task.num_scalars].tolist())
            self.worker.run(Gradient(item, task.iteration, epoch, minibatch, scalars))
            self.worker.reach("hand-over", task.iteration, 1)
            return
        blocks = len(self.memory.gradient_squares)
        first, end = (index * blocks // task.ranges * BLOCK for index in (item, item + 1))
        changed = {
            kernel.SUM: self.memory.gradient,
            kernel.ADAM: self.memory.stepped[0],
            kernel.COPY: self.memory.parameters,
        }[stage]
        self.worker.reach(STAGE_NAMES[stage], task.iteration, step, changed[first:end])
        self.library.steps_perform(self.address, item)
