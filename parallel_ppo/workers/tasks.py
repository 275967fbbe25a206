"""The tasks of workers. Needs no torch.

Every task reads and writes disjoint parts of the shared memory, so it can be done again. A pinned task is done by
the worker that owns its slice. Other tasks are queued there first, and an idle worker may take them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from parallel_ppo.settings.sizes import Sizes

Owners = Mapping[int, int]  # slice -> worker


class Task(NamedTuple):
    kind: str  # of KINDS
    number: int  # of the slice or the microbatch
    iteration: int = 0
    detail: Any = None


class Kind(NamedTuple):
    is_pinned: bool
    numbers: str = "slice"  # what `Task.number` counts


OPEN = "open"  # make a slice's environments, where the iteration starts; detail: fresh, without a saved state
COLLECT = "collect"
REVALUE = "revalue"  # the newest parameters' values and log-probabilities of a slice's samples
GRADIENT = "gradient"  # of one microbatch of a minibatch; detail: `Microbatch`
EVALUATE = (
    "evaluate"  # play episodes that never enter a gradient (`playing.py`); detail: number of the level set
)
WARM_UP = "warm_up"  # watch a random agent, for the statistics that curiosity starts with
TAKE_STEPS = "take_steps"  # all optimizer steps of an update (`optimizer_steps.py`); detail: `StepsPlan`
KINDS = {
    OPEN: Kind(is_pinned=True),
    COLLECT: Kind(is_pinned=True),
    REVALUE: Kind(is_pinned=False),
    GRADIENT: Kind(is_pinned=False, numbers="microbatch"),
    EVALUATE: Kind(is_pinned=False, numbers="group of episodes"),
    WARM_UP: Kind(is_pinned=False),
    TAKE_STEPS: Kind(is_pinned=True, numbers="worker"),
}


class Microbatch(NamedTuple):
    """A microbatch's place in the plan of an update."""

    step: int
    num_scalars: int  # of the algorithm


class StepsPlan(NamedTuple):
    """An update's optimizer steps, as far as they are not in shared memory."""

    first: int  # round
    num_workers: int
    ranges: int  # of parameters, that a step is divided into
    microbatches: tuple[int, int]  # of this node: the first, and the one after the last
    sums_microbatches: bool  # False: the cluster adds them up in groups
    num_scalars: int
    steps_before: int  # optimizer steps of the run before this update
    learning_rate: float  # of the first step


class Span(NamedTuple):
    """When a worker performed a task, on the monotonic clock: for idle shares and traces."""

    worker: int
    task: Task  # its kind may also be a stage of an optimizer step
    started: float
    ended: float
    interrupted: float = 0.0  # seconds in between that went into more urgent tasks

    @property
    def seconds(self) -> float:
        return self.ended - self.started - self.interrupted


def is_pinned(task: Task) -> bool:
    return KINDS[task.kind].is_pinned


def home(task: Task, sizes: Sizes, owners: Owners, num_workers: int) -> int:
    """The worker that gets a task first."""
    numbers = KINDS[task.kind].numbers
    if numbers == "slice":
        return owners[task.number]
    if numbers == "microbatch":
        return owners[task.number // len(sizes.microbatch_sizes)]
    return task.number % num_workers
