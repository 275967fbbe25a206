"""Gradients and sums without a message for each: a round of tasks lies in shared memory, workers claim and
count them there (`kernels/rounds.c`).

A worker that was told to join does so until the rounds are over. Whoever finishes the last task of a round
says so in one message; should it die before it can, its death makes the coordinator look.
"""

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np

from parallel_ppo.kernels.rounds import ITEM_BITS, OVER, load_rounds
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import Gradient, Reduce

PATIENCE = 1000  # milliseconds after which a waiting worker looks up
KINDS = (Gradient, Reduce)  # both are four whole numbers, the first with the scalars of its minibatch beside


def make_rounds(memory: Memory, num_workers: int, lag: int) -> "Rounds | None":
    """None where there is no library for it, or where workers have to collect between two lanes."""
    library = load_rounds()
    return None if lag or library is None else Rounds(memory, num_workers, library)


class Rounds:
    def __init__(self, memory: Memory, num_workers: int, library: ctypes.CDLL) -> None:
        self.memory, self.num_workers, self.library = memory, num_workers, library
        self.header, self.bell = memory.round_header.ctypes.data, memory.round_bell.ctypes.data
        self.claims = memory.round_claims.ctypes.data
        self.number, self.num_items = 0, 0

    # --- the coordinator ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.num_items > 0

    def open(self, tasks: Sequence[Gradient | Reduce]) -> None:
        """All of one kind, and gradients of one minibatch."""
        memory, first = self.memory, tasks[0]
        memory.round_kind[0] = KINDS.index(type(first))
        memory.round_tasks[: len(tasks)] = [task[:4] for task in tasks]
        if isinstance(first, Gradient):
            memory.round_scalars[: len(first.scalars)] = first.scalars
            memory.round_kind[1] = len(first.scalars)
        self._begin(len(tasks))

    def close(self) -> None:
        """Whoever has joined leaves."""
        if self.is_open:
            self._begin(0)

    def _begin(self, num_items: int) -> None:
        self.number, self.num_items = self.number + 1, num_items
        self.library.rounds_open(self.header, self.bell, self.number, num_items)

    def is_done(self) -> bool:
        return self.library.rounds_is_done(self.claims, self.number, self.num_items)

    def free(self, worker: int) -> None:
        """What this worker, confirmed dead, has claimed and not done may be claimed again."""
        self.library.rounds_free(self.bell, self.claims, self.number, self.num_items, worker)

    def progress(self, worker: int) -> object:
        """Is another at each call as long as the worker does what there is to do."""
        claims = self.memory.round_claims[: self.num_items]
        held = np.flatnonzero(claims == (self.number << ITEM_BITS | worker << 1)).tolist()
        if self.is_open and not held and bool(np.all(claims >> ITEM_BITS == self.number)):
            return time.monotonic()
        return self.number, held

    def spans(self, tasks: Sequence[Gradient | Reduce]) -> list[Span]:
        """Who did what in the round that is done."""
        holders = ((self.memory.round_claims[: len(tasks)] & ((1 << ITEM_BITS) - 1)) >> 1).tolist()
        times = self.memory.round_times[: len(tasks)].tolist()
        return [Span(holder, task, *time) for holder, task, time in zip(holders, tasks, times, strict=True)]

    # --- a worker -------------------------------------------------------------------------------------------

    def take_part(
        self,
        worker: int,
        perform: Callable[[Gradient | Reduce], object],
        counted: Callable[[Gradient | Reduce, bool], None],
    ) -> None:
        """Until the rounds are over. `counted` is told of each task, and whether its round ended with it."""
        times = self.memory.round_times
        while (item := self._next(worker)) != OVER:
            if item >= 0:
                started = time.monotonic()
                task = self._task(item)
                perform(task)
                times[item] = started, time.monotonic()
                counted(task, self.library.rounds_finish(self.header, self.claims, item))

    def _next(self, worker: int) -> int:
        return self.library.rounds_next(
            self.header, self.bell, self.claims, worker, self.num_workers, PATIENCE
        )

    def _task(self, item: int) -> Gradient | Reduce:
        kind, num_scalars = self.memory.round_kind.tolist()
        one, two, three, four = self.memory.round_tasks[item].tolist()
        if KINDS[kind] is Reduce:
            return Reduce(one, two, three, four)
        return Gradient(one, two, three, four, tuple(self.memory.round_scalars[:num_scalars].tolist()))
