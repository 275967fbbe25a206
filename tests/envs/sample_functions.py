"""Functions that an environment may call, which hide what they compute with."""

import functools
import math
from typing import Any

import gymnasium
import numpy as np

from tests.envs import sample_sums

cosine, tables = math.cos, {"bent": np.tanh}


def rounded(function: Any = math.cosh) -> Any:
    return function


def called_by_another_name(x: float) -> float:
    return cosine(x)


def taken_from_a_table(x: float) -> float:
    return tables["bent"](x)


def called_by_default(x: float) -> float:
    return rounded()(x)


def in_another_module(x: np.ndarray) -> np.ndarray:
    return sample_sums.added(x)


def imported_inside(x: float) -> float:
    from scipy.special import expit

    return expit(x)


def kept_by_a_decorator(x: float) -> float:
    return remembered(x)


@functools.cache
def remembered(x: float) -> float:
    return math.log(x)


def plain(left: float) -> float:
    return max(0.0, left * 0.5) + sum([1, 2])


def scaled(self: gymnasium.Env, x: float) -> float:
    return x**0.5
