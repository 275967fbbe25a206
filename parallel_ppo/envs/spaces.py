"""Gymnasium spaces -> what the network and the slab understand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.exits import InputError

MAX_CHANNELS = 16


class Reader(NamedTuple):
    """How an observation of the environment becomes a row of the slab."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Any], np.ndarray]


def observation_reader(space: spaces.Space, env_id: str) -> Reader:
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4):
        return _image_reader(space.shape, env_id)
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and any(_is_image(part) for part in _leaves(space)):
        raise InputError(
            f"env.id: {env_id} mixes images with other observations ({space}); use a wrapper (env.wrappers) that returns one image or one vector"
        )
    if not all(
        isinstance(part, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
        for part in _leaves(space)
    ):
        raise InputError(
            f"env.id: {env_id} has the observation space {space}; expected a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
        )
    if isinstance(space, spaces.Box):
        return Reader(
            (int(np.prod(space.shape)),), "float32", lambda value: np.asarray(value, np.float32).reshape(-1)
        )
    return Reader(
        (spaces.flatdim(space),),
        "float32",
        lambda value: np.asarray(spaces.flatten(space, value), np.float32),
    )


def _leaves(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.values() for leaf in _leaves(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space for leaf in _leaves(part)]
    return [space]


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def _image_reader(shape: tuple[int, ...], env_id: str) -> Reader:
    """Height, width, channels; stacked frames become channels."""
    if len(shape) == 2:
        return Reader((*shape, 1), "uint8", lambda value: np.asarray(value, np.uint8)[..., None])
    if len(shape) == 4:
        stack, height, width, channels = shape
        return Reader((height, width, stack * channels), "uint8",
                      lambda value: np.moveaxis(np.asarray(value, np.uint8), 0, 2).reshape(height, width, -1))  # fmt: skip
    if shape[2] <= MAX_CHANNELS:
        return Reader(shape, "uint8", lambda value: np.asarray(value, np.uint8))
    if shape[0] <= MAX_CHANNELS:
        return Reader(
            (shape[1], shape[2], shape[0]),
            "uint8",
            lambda value: np.moveaxis(np.asarray(value, np.uint8), 0, 2),
        )
    raise InputError(
        f"env.id: {env_id} has images of shape {shape}; expected height x width x channels with at most {MAX_CHANNELS} channels"
    )


class ActionWriter(NamedTuple):
    """How a row of the slab becomes an action of the environment."""

    spec: ActionSpec
    write: Callable[[np.ndarray], Any]


def action_writer(space: spaces.Space, env_id: str) -> ActionWriter:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return ActionWriter(ActionSpec("categorical", (int(space.n),)), lambda row: int(row[0]) + start)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        first = np.asarray(space.start, dtype=space.dtype)
        return ActionWriter(
            ActionSpec("categorical", tuple(int(n) for n in space.nvec)),
            lambda row: row.astype(space.dtype) + first,
        )
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return ActionWriter(ActionSpec("bernoulli", (int(space.shape[0]),)), lambda row: row.astype(np.int8))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high, shape = space.low.reshape(-1), space.high.reshape(-1), space.shape
        spec = ActionSpec("gaussian", (low.size,), tuple(map(float, low)), tuple(map(float, high)))
        return ActionWriter(spec, lambda row: np.clip(row, low, high).reshape(shape).astype(space.dtype))
    raise InputError(
        f"env.id: {env_id} has the action space {space}; expected Discrete, MultiDiscrete, MultiBinary or a Box of floats"
    )
