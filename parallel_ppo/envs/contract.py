"""The slice contract: what a worker knows of an environment.

A slice is a fixed group of environments that is always stepped as one batch. The contract hides how an
environment resets: `episode_start[t]` is true when observation `t` opens an episode, and an episode that
was cut by a limit hands over the observation it would have continued from.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np


class ActionSpec(NamedTuple):
    """`kind` picks the action head; `sizes` are the choices per component (categorical) or the number of
    dimensions.
    """

    kind: Literal["categorical", "gaussian", "bernoulli"]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class Part(NamedTuple):
    """One part of an observation that mixes vectors and images: where its bytes lie in a row of the rollout."""

    is_image: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * (1 if self.is_image else 4)


class EnvSpec(NamedTuple):
    """Shapes and types that decide the network and the rollout; plain data, the same in every process.

    An observation is one image, one vector, or (with `parts`) a row of bytes that holds at most one
    vector, first, and images.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    state_bytes: int  # capacity reserved for one environment's saved state
    parts: tuple[Part, ...] = ()
    masks_actions: bool = False  # some choices are not allowed in some states

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
        """Of the numbers that can be normalised; () where there are only images."""
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
        )


class ReplayCheck(NamedTuple):
    """How an environment behaved; the texts say what differs where."""

    step_seconds: float = 1.0  # what did not answer in time is slow
    differs: str = ""  # in a second new object: nothing can make this environment reproducible
    differs_when_reused: str = ""
    remembers: bool = False  # on purpose: fresh objects would play one episode for ever, or forget
    unchanged_steps: int = 0  # in which every observation was the same; 0: not all were
    draws_globally: str = ""  # where: "step" or "reset"

    def why_inexact(self, name: str, fresh_objects: bool) -> str:
        """One line for the user, empty when all is well."""
        if self.draws_globally and not self.differs:
            why = f"draws from the global generators in {self.draws_globally}, which others use too"
        elif self.differs:
            why = (
                f"has {self.differs} when an episode is played again (it draws from something other than"
                " self.np_random)"
            )
        elif self.differs_when_reused and not fresh_objects:
            why = (
                f"has {self.differs_when_reused} when its object has played before (it or a wrapper remembers"
                " earlier episodes)"
            )
        else:
            return ""
        return f"{name} {why}: a resume or another number of workers learns something else (bit_exact: false)"


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

    @property
    def action_mask(self) -> np.ndarray | None:
        """[n, K] uint8: which choices are allowed after the last observation; None where all always are."""
        ...

    def reset(self) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Step: ...

    def get_state(self) -> list[bytes]: ...

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The observations after restoring, and [n] bool: is exact; where it is not, a new episode was
        opened.
        """
        ...

    def views(self) -> list[View]:
        """Of the first `num_views` environments, as the slice was made."""
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
