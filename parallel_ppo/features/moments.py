"""Running mean and variance, merged in a fixed order."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from parallel_ppo.kernels import numerics

EPSILON = 1e-8


class Slices(Protocol):
    """The part of a cluster that merging needs. A gathering is collective: every node must make the call."""

    slices: range

    def gather_slices(self, rows: np.ndarray) -> np.ndarray: ...


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations, in float64; new ones, or views of saved arrays."""

    num: Any  # a number, or an array without axes
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> "Moments":
        return cls(np.zeros(()), np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, samples: np.ndarray) -> "Moments":
        """Over the first axis."""
        wide = samples.astype(np.float64)
        mean = numerics.column_sums(wide) / len(wide)
        return cls(float(len(wide)), mean, numerics.column_sums(np.square(wide - mean)))

    def merged(self, other: "Moments") -> "Moments":
        total = self.num + other.num
        if total == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.num / total)
        squares = self.squares + other.squares + np.square(delta) * (self.num * other.num / total)
        return Moments(total, mean, squares)

    def add(self, other: "Moments") -> None:
        """`merged` in place: all three are computed before any is written."""
        for own, new in zip(self, self.merged(other), strict=True):
            own[...] = new

    @property
    def variance(self) -> np.ndarray:
        return self.squares / max(self.num, 1.0)
