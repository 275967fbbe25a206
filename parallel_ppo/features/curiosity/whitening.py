"""Observations as the predictors see them: each element less its mean, over its deviation, clipped.

Our kernels read bytes, so for them a whitened image is written in 256 levels between the clips (0.04
deviations each at +-5), and `encoders.py` folds scale and offset into its first layer. B rows of the rollout,
N elements of all parts of an observation, the vector first.
"""

import math

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.envs.contract import EnvSpec, Part
from parallel_ppo.features.moments import EPSILON, Moments
from parallel_ppo.kernels import native
from parallel_ppo.kernels.choice import unsuitable
from parallel_ppo.settings.schema import Settings

EXACT_ROWS = 256  # bytes squared and added up in float32 without rounding
PIXEL_EPSILON = 1e-2  # added to the variance of a pixel, which has whole levels


def parts_of(spec: EnvSpec) -> tuple[Part, ...]:
    return spec.parts or (Part(spec.is_image, spec.observation_shape, 0),)


def num_elements(spec: EnvSpec) -> int:
    return sum(math.prod(part.shape) for part in parts_of(spec))


def is_native(settings: Settings, spec: EnvSpec) -> bool:
    """Do our kernels compute the networks that read images?"""
    if settings.training.kernels != "native" or spec.parts or not spec.is_image:
        return False
    return unsuitable("nature", spec.observation_shape) is None


def elements(spec: EnvSpec, part: Part, rows: Tensor) -> Tensor:
    """A part's elements in rows of the rollout, [B, n]."""
    if spec.parts:
        rows = rows[:, part.offset : part.end]
        rows = rows if part.is_image else rows.contiguous().view(torch.float32)
    return rows.reshape(len(rows), -1)


def moments(spec: EnvSpec, rows: np.ndarray, *, by_kernels: bool = False) -> np.ndarray:
    """Means and sums of squared deviations of some observations, [2, N]; the same with the kernels."""
    found = []
    for part in parts_of(spec):
        values = elements(spec, part, torch.from_numpy(rows))
        if part.is_image:
            sums = native.byte_sums(values) if by_kernels else byte_sums(values)
            mean, squares = sums.numpy() / len(values)
            found.append(np.stack([mean, np.maximum(squares - np.square(mean), 0) * len(values)]))
        else:
            one = Moments.of(values.numpy())
            found.append(np.stack([one.mean, one.squares]))
    return np.concatenate(found, 1)


def byte_sums(values: Tensor) -> Tensor:
    """As `native.byte_sums`."""
    total = torch.zeros(2, values.shape[1], dtype=torch.float64)
    for some in values.split(EXACT_ROWS):
        wide = some.to(torch.float32)
        total[0] += wide.sum(0)
        total[1] += wide.square_().sum(0)
    return total


def scale(spec: EnvSpec, observations: Moments) -> np.ndarray:
    """1 / deviation of each element."""
    least = [
        np.full(math.prod(part.shape), PIXEL_EPSILON if part.is_image else EPSILON) for part in parts_of(spec)
    ]
    return 1 / np.sqrt(observations.variance + np.concatenate(least))


class Whitening:
    """Rows of the rollout -> a list of parts: vectors [B, n], images [B, height, width, channels]."""

    def __init__(self, settings: Settings, spec: EnvSpec, mean: Tensor, scale: Tensor) -> None:
        """`mean` and `scale` [N] may change between uses."""
        self.spec, self.clip = spec, settings.curiosity.observation_clip
        self.writes_bytes = is_native(settings, spec)
        self.parts, first = [], 0
        for part in parts_of(spec):
            span = slice(first, first + math.prod(part.shape))
            self.parts.append((part, mean[span], scale[span]))
            first = span.stop

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> list[Tensor]:
        found = []
        for part, mean, scale in self.parts:
            values = elements(self.spec, part, rows)
            if self.writes_bytes:  # byte b means 2 clip b / 255 - clip
                values = native.whiten(values, mean, scale, 127.5 / self.clip)
            else:
                values = (values - mean).mul_(scale).clamp_(-self.clip, self.clip)
            found.append(values.view(-1, *part.shape))
        return found
