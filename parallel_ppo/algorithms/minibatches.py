"""The samples of a minibatch, and the order in which its microbatches are added up. T steps, E envs, L microbatches."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from parallel_ppo.keyed import generator


def sample_order(*, seed: int, slice_index: int, iteration: int, epoch: int, num_samples: int) -> np.ndarray:
    """The order in which an epoch visits a slice's samples; minibatch k takes the k-th run of it."""
    return generator(seed, "minibatch", slice_index, iteration, epoch).permutation(num_samples)


def rollout_rows(
    order: np.ndarray, *, slice_index: int, slice_envs: int, num_envs: int, length: int = 1
) -> np.ndarray:
    """Sequences of a slice (step-major) -> rows of the rollout viewed as [T * E, ...], sequence by sequence. A
    sequence is `length` steps of one environment; where it is 1, a sample.
    """
    sequence, env = np.divmod(order, slice_envs)
    step = sequence[:, None] * length + np.arange(length)
    return (step * num_envs + (slice_index * slice_envs + env)[:, None]).reshape(-1)


def plain_sum(numbers: Iterable[float]) -> float:
    """From left to right, each sum rounded. The built-in `sum` compensates rounding from Python 3.12 on, so
    its result depends on the version.
    """
    total = 0.0
    for number in numbers:
        total += number
    return total


def tree_sum(rows: list[Tensor]) -> Tensor:
    """Adjacent pairs, level by level, an odd last one passes up. Element-wise, so it may be split by
    range without changing a bit.
    """
    while len(rows) > 1:
        pairs = [rows[i] + rows[i + 1] for i in range(0, len(rows) - 1, 2)]
        rows = pairs + rows[len(rows) & ~1 :]
    return rows[0]
