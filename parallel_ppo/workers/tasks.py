"""What a worker can be asked to do. Needs no torch.

Every task reads and writes disjoint parts of the shared memory, so it can be asked again. A pinned task
is done by the worker that owns its slice; the others go home first, and from there to whoever is idle.
"""

from collections.abc import Mapping
from typing import NamedTuple

from parallel_ppo.settings.schema import Shape

Owners = Mapping[int, int]  # slice -> worker


class Open(NamedTuple):
    """Make a slice's environments and put them where iteration `iteration` starts."""

    slice_index: int
    iteration: int
    fresh: bool  # no saved state: reset, and publish the first one

    @property
    def is_pinned(self) -> bool:
        return True

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return owners[self.slice_index]


class Collect(NamedTuple):
    slice_index: int
    iteration: int

    @property
    def is_pinned(self) -> bool:
        return True

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return owners[self.slice_index]


class Gradient(NamedTuple):
    """The gradient of one lane of a minibatch."""

    lane: int
    iteration: int
    epoch: int
    minibatch: int
    scalars: tuple[float, ...]  # of the algorithm

    @property
    def is_pinned(self) -> bool:
        return False

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return owners[self.lane // len(shape.lane_sizes)]


class Reduce(NamedTuple):
    """The sum of some lanes' gradients, for some blocks of parameters."""

    first_block: int
    end_block: int
    first_lane: int
    end_lane: int

    @property
    def is_pinned(self) -> bool:
        return False

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return self.first_block % num_workers


class Revalue(NamedTuple):
    """The newest parameters' values and log-probabilities of a slice's samples."""

    slice_index: int
    iteration: int

    @property
    def is_pinned(self) -> bool:
        return False

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return owners[self.slice_index]


class Evaluate(NamedTuple):
    """Play some episodes that never enter a gradient (see `playing.py`)."""

    level_set: int  # of `playing.LEVEL_SETS`
    slice_index: int
    iteration: int

    @property
    def is_pinned(self) -> bool:
        return False

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return self.slice_index % num_workers


class Join(NamedTuple):
    """Claim gradients and sums in shared memory until they are over (see `rounds.py`)."""

    num_workers: int  # that may claim

    @property
    def is_pinned(self) -> bool:
        return True


class TakeSteps(NamedTuple):
    """Take all optimizer steps of an update, together with the other workers (see `steps.py`)."""

    first: int  # round
    iteration: int
    num_workers: int
    ranges: int  # of parameters, that a step is divided into
    num_scalars: int

    @property
    def is_pinned(self) -> bool:
        return True


class Apply(NamedTuple):
    """A part of `TakeSteps`: the optimizer, or the copy of what it found, on some blocks of parameters."""

    first_block: int
    end_block: int


class WarmUp(NamedTuple):
    """Watch a random agent, for the statistics that curiosity starts with."""

    slice_index: int

    @property
    def is_pinned(self) -> bool:
        return False

    def home(self, shape: Shape, owners: Owners, num_workers: int) -> int:
        return owners[self.slice_index]


class Later(NamedTuple):
    """A task that gives way to every other."""

    task: Collect


Task = Open | Collect | Gradient | Reduce | Revalue | Evaluate | WarmUp
Question = Task | Join | TakeSteps  # what is sent to a worker
