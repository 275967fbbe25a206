"""The sizes that follow from the settings: slices, minibatches, microbatches, rollouts kept."""

import math
from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_SLICE = 8
LONGEST_SEQUENCE = 32  # by default
RECURRENT_MICROBATCH = 256  # samples: a cell needs several sequences at a time to be fast
MAX_MICROBATCHES = 1 << 16


class Sizes(NamedTuple):
    """The sizes that follow from the settings alone."""

    num_steps: int
    num_envs: int
    slice_envs: int
    num_slices: int
    num_epochs: int
    num_minibatches: int
    batch_size: int
    slice_samples: int  # of one slice in one minibatch
    microbatch_sizes: tuple[int, ...]  # they add up to `slice_samples`
    steps_per_iteration: int
    lag: int = 0  # iterations by which collection may run ahead of the update
    num_actors: int = 0  # a3c: slices that learn in turn, each with its own parameters
    predictor_samples: tuple[int, ...] = ()  # curiosity: samples of each microbatch of a slice
    sequence_length: int = 1  # steps of an environment that a microbatch holds one after the other

    @property
    def num_rollouts(self) -> int:
        """The rollout of the update and those collected ahead of it."""
        return self.lag + 1

    @property
    def num_slots(self) -> int:
        """Saved starts: one for each rollout kept, and the next one. Without a lag a third one, because workers collect
        while the last snapshot may still be saved.
        """
        return max(3, self.lag + 2)

    @property
    def num_versions(self) -> int:
        """Older parameters kept for collection; 0 if it uses those of the update."""
        return self.num_actors or (self.lag + 1 if self.lag else 0)

    def version_row(self, slice_index: int, iteration: int) -> int:
        """The version with which this slice collects this iteration."""
        assert self.num_versions
        return slice_index if self.num_actors else max(0, iteration - self.lag) % self.num_versions

    @property
    def learned_together(self) -> int:
        """Samples of one optimizer step."""
        return self.batch_size // max(1, self.num_actors)

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps of one update."""
        return self.num_epochs * self.num_minibatches * max(1, self.num_actors)

    def epoch_and_minibatch(self, step: int) -> tuple[int, int]:
        return (0, 0) if self.num_actors else divmod(step, self.num_minibatches)

    @property
    def num_microbatches(self) -> int:
        return self.num_slices * len(self.microbatch_sizes)

    @property
    def predictor_microbatches(self) -> int:
        """Microbatches of a slice that train curiosity's predictors; they come first."""
        return sum(samples > 0 for samples in self.predictor_samples)

    @property
    def num_predictor_samples(self) -> int:
        """Samples of a minibatch that train curiosity's predictors."""
        return self.num_slices * sum(self.predictor_samples)


def largest_slice(num_envs: int, most: int = DEFAULT_SLICE) -> int:
    return max(n for n in range(1, min(most, num_envs) + 1) if num_envs % n == 0)


def predictor_samples(microbatch_sizes: Sequence[int], share: float) -> tuple[int, ...]:
    """The samples of each of a slice's microbatches that train the predictors: the first ones.

    Samples are in random order, so the first are as good as any, and whole microbatches cost less than parts.
    """
    left, found = max(1, math.floor(share * sum(microbatch_sizes) + 0.5)), list[int]()
    for size in microbatch_sizes:
        found.append(min(size, left))
        left -= found[-1]
    return tuple(found)
