"""A module that an environment calls by its name."""

import numpy as np


def added(x: np.ndarray) -> np.ndarray:
    return x.sum(0)
