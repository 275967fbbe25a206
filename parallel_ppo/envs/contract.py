"""The slice contract: the interface between a worker and its environments.

A slice is a fixed group of n environments that are always stepped as one batch. The contract hides resets:
`episode_start[t]` is true if observation `t` is the first of an episode, and an episode cut by a limit also gives
the observation from which it would have continued.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np


class ActionSpec(NamedTuple):
    """`sizes` are the number of choices of each component (categorical) or the number of dimensions."""

    kind: Literal["categorical", "gaussian", "bernoulli"]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class Part(NamedTuple):
    """The place in a row of the rollout of one part of an observation that mixes vectors and images."""

    is_image: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * (1 if self.is_image else 4)


class EnvSpec(NamedTuple):
    """Shapes and types that decide the network and the rollout.

    An observation is one image, one vector, or (with `parts`) a row of bytes with at most one vector, then images.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    state_bytes: int  # space reserved for one environment's saved state
    parts: tuple[Part, ...] = ()
    masks_actions: bool = False  # some states forbid some choices
    spaces: str = ""  # of Gymnasium, as `spaces.spaces_as_text` writes them; empty if they cannot be written

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3

    @property
    def image_shapes(self) -> list[tuple[int, ...]]:
        if self.parts:
            return [part.shape for part in self.parts if part.is_image]
        return [self.observation_shape] if self.is_image else []

    @property
    def vector_shape(self) -> tuple[int, ...]:
        """The shape of the numbers that can be normalized; () if there are only images."""
        if self.parts:
            return () if self.parts[0].is_image else self.parts[0].shape
        return () if self.is_image else self.observation_shape

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The vector in each row of the rollout, [..., N]."""
        if not self.parts:
            return rows
        return rows[..., : self.parts[0].end].view(np.float32)

    def as_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, values: dict[str, Any] | list[Any]) -> "EnvSpec":
        if isinstance(values, list):  # weights of version 0.1
            names = "observation_shape", "observation_dtype", "action", "restorable", "state_bytes", "parts"
            values = dict(zip(names, values, strict=False))
        kind, sizes, low, high = values["action"]
        return cls(
            tuple(values["observation_shape"]),
            values["observation_dtype"],
            ActionSpec(kind, tuple(sizes), tuple(low), tuple(high)),
            values["state_bytes"],
            tuple(Part(is_image, tuple(size), offset) for is_image, size, offset in values.get("parts", [])),
            values.get("masks_actions", False),
            values.get("spaces", ""),
        )


class ReplayCheck(NamedTuple):
    """The result of replaying episodes; a text names the first difference."""

    step_seconds: float = 1.0  # a check without a result in time counts as slow
    differs: str = ""  # in a second new object: nothing can make this environment reproducible
    differs_when_reused: str = ""
    remembers: bool = False  # intentionally: with fresh objects, all episodes would be the same
    unchanged_steps: int = 0  # number of steps if all observations were the same, else 0
    draws_globally: str = ""  # "step" or "reset" if it draws from the global generators there
    machine_functions: str = "functions that could not be examined"  # that may round by CPU; "" if none do

    def why_inexact(self, name: str, fresh_objects: bool) -> str:
        """A warning for the user, or an empty text."""
        if self.differs:
            why = f"has {self.differs} when an episode is replayed (it uses something other than self.np_random)"
        elif self.draws_globally:
            why = f"draws from the global generators in {self.draws_globally}, which other code uses too"
        elif self.differs_when_reused and not fresh_objects:
            why = f"has {self.differs_when_reused} when reused (it or a wrapper remembers earlier episodes)"
        else:
            return ""
        return f"{name} {why}: a resume or another number of workers changes the result (bit_exact: false)"


class Step(NamedTuple):
    observation: np.ndarray  # [n, ...] the next input of the policy
    reward: np.ndarray  # [n] float32
    episode_start: np.ndarray  # [n] bool: `observation` is the first of an episode
    truncated: np.ndarray | None  # [n] bool: the episode was cut, not finished
    final_observation: np.ndarray | None  # [n, ...] valid if truncated
    level_seed: np.ndarray | None  # [n] int32: level of the episode that ended, valid at episode_start
    level_complete: np.ndarray | None = None  # [n] 1: it was solved, -1: unknown; valid at episode_start
    info: np.ndarray | None = None  # [n, K] values of `env.info_keys`, NaN: none; valid at episode_start


class View(NamedTuple):
    picture: np.ndarray  # [height, width, 3] uint8
    level_seed: int | None


class SliceEnv(Protocol):
    @property
    def action_mask(self) -> np.ndarray | None:
        """[n, K] uint8: the choices allowed after the last observation; None if there are no masks."""
        ...

    def reset(self) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Step: ...

    def get_state(self) -> list[bytes]: ...

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The observations, and [n] bool: False if the state could not be restored and a new episode started."""
        ...

    def views(self) -> list[View]:
        """Views of the first `num_views` environments."""
        ...

    def close(self) -> None: ...


class LevelEnv(SliceEnv, Protocol):
    """Environments of a family that has levels."""

    def playing_levels(self) -> np.ndarray:
        """[n] int32: the level of each unfinished episode."""
        ...

    def set_next_levels(self, levels: Mapping[int, int]) -> None:
        """The next level of some environments, by their index."""
        ...
