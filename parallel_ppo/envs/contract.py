"""The slice contract: what a worker knows of an environment.

A slice is a fixed group of environments that is always stepped as one batch. The contract hides how an environment resets:
`episode_start[t]` is true when observation `t` opens an episode, and an episode that was cut by a limit hands over the
observation it would have continued from.
"""

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np


class ActionSpec(NamedTuple):
    """`kind` picks the action head; `sizes` are the choices per component (categorical) or the number of dimensions."""

    kind: Literal["categorical", "gaussian", "bernoulli"]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class EnvSpec(NamedTuple):
    """Shapes and types that decide the network and the slab; plain data, the same in every process."""

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    restorable: bool
    state_bytes: int  # capacity reserved for one environment's saved state

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3

    def as_json(self) -> list[Any]:
        return [
            list(self.observation_shape),
            self.observation_dtype,
            list(self.action),
            self.restorable,
            self.state_bytes,
        ]

    @classmethod
    def from_json(cls, values: list[Any]) -> "EnvSpec":
        shape, dtype, (kind, sizes, low, high), restorable, state_bytes = values
        return cls(
            tuple(shape),
            dtype,
            ActionSpec(kind, tuple(sizes), tuple(low), tuple(high)),
            restorable,
            state_bytes,
        )


class Step(NamedTuple):
    """What one step of a slice of n environments gave."""

    observation: np.ndarray  # [n, ...] what the policy sees next
    reward: np.ndarray  # [n] float32
    episode_start: np.ndarray  # [n] bool: `observation` opens an episode
    truncated: np.ndarray | None  # [n] bool: the episode was cut, not finished
    final_observation: np.ndarray | None  # [n, ...] valid where truncated
    level_seed: np.ndarray | None  # [n] int32: level of the episode that ended, valid where episode_start
    level_complete: np.ndarray | None = None  # [n] bool: that level was solved, valid where episode_start


class View(NamedTuple):
    """What a person sees of an environment."""

    picture: np.ndarray  # [height, width, 3] uint8
    level_seed: int | None


class SliceEnv(Protocol):
    """The environments of one slice."""

    def reset(self) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Step: ...

    def get_state(self) -> list[bytes]: ...

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, bool]:
        """The observation after restoring, and whether the restored state is exact."""
        ...

    def views(self) -> list[View]:
        """Of the first `num_views` environments, as the slice was made."""
        ...

    def close(self) -> None: ...
