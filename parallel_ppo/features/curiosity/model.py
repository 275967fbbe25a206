"""The interface of a curiosity: the samples that it learns from, its rewards and its losses. B samples.

T steps, E envs, n envs of a slice.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.features.curiosity.whitening import Whitening

NOTHING = np.zeros((0, 0), np.float32)
PIECE = 64  # samples that are rewarded as one batch


class CollectedColumns(NamedTuple):
    """A slice's columns of a rollout: views of the rollout."""

    observation: np.ndarray  # [T + 1, n, ...]
    action: np.ndarray  # [T, n, A]
    episode_start: np.ndarray  # [T + 1, n]
    intrinsic_reward: np.ndarray  # [T, n] to be written
    target_features: np.ndarray  # [T, n, K] to be written, by those that have a target
    novelty: np.ndarray = NOTHING  # [T, n] to be written by NGU, as is the next
    episodic_size: np.ndarray = NOTHING  # [1, n]
    novelty_scale: tuple[float, float] = (0.0, 0.0)  # its running mean, and 1 / deviation
    carried: Mapping[str, np.ndarray] = MappingProxyType({})  # from iteration to iteration: to be updated

    def pieces(self, num_rows: int) -> Iterator[slice]:
        """The first `num_rows` steps, in batches of one shape (but the last)."""
        steps = max(1, PIECE // self.observation.shape[1])
        for first in range(0, num_rows, steps):
            yield slice(first, min(first + steps, num_rows))

    def rows(self, steps: slice) -> Tensor:
        """Observations of some steps as [B, ...]."""
        some = self.observation[steps]
        return torch.from_numpy(some.reshape(-1, *some.shape[2:]))


class Transitions(NamedTuple):
    """Some samples of a rollout. `columns` are [T(+1) * E, ...]; rows are read when asked for."""

    columns: dict[str, Tensor]
    rows: Tensor
    num_envs: int

    def here(self, name: str) -> Tensor:
        return self.columns[name].index_select(0, self.rows)

    def after(self, name: str) -> Tensor:
        return self.columns[name].index_select(0, self.rows + self.num_envs)

    @property
    def continues(self) -> Tensor:
        """[B]: 0 where the next observation belongs to another episode."""
        return 1 - self.after("episode_start").to(torch.float32)


class Losses(NamedTuple):
    """Sums over samples; `total` carries the gradient."""

    total: Tensor
    predictor: Tensor | None = None
    inverse: Tensor | None = None
    forward: Tensor | None = None

    def sums(self) -> dict[str, Tensor]:
        """The losses that this model has, by name."""
        named = {"predictor": self.predictor, "inverse": self.inverse, "forward": self.forward}
        return {name: value.detach() for name, value in named.items() if value is not None}


class Model(Protocol):
    """The learned predictors, a `torch.nn.Module`."""

    LOSSES: tuple[str, ...]  # those that it fills in

    def begin_inference(self) -> None: ...

    def begin_step(self, step: tuple[int, ...]) -> None: ...

    def reward(self, whiten: Whitening, columns: CollectedColumns) -> None:
        """Writes the rewards of a slice's rollout, before any scaling."""

    def losses(self, whiten: Whitening, batch: Transitions) -> Losses: ...
