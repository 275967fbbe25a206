"""Converts between Gymnasium's spaces and rows of the rollout.

An observation becomes one image, one vector, or (a Dict or Tuple with images) a row of bytes: one vector of
everything that is not an image, then the images.
"""

import json
import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from parallel_ppo.envs.contract import ActionSpec, Part
from parallel_ppo.exits import InputError

MAX_CHANNELS = 16
MAX_NUMBERS = (1 << 24) - 1  # numbers of an observation; choices or dimensions of an action
PART_ALIGNMENT = 64  # bytes
MAX_TEXT = 1 << 20  # characters of the spaces that are saved with a policy
NO_BOUND = 1e30  # larger bounds mean infinity; scaling by them would overflow
VECTOR_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

# `Single.check` reports numbers that are too large for float32.
warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning, re.escape(__name__))


class Misfit(Exception):
    """An observation contradicts its space; the text ends a sentence such as "returned from step ..."."""

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice


class Leaf(NamedTuple):
    """One simple space inside an observation, and its path of keys."""

    space: spaces.Space
    path: tuple[Any, ...]

    @property
    def name(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.path)

    def find(self, observation: Any) -> Any:
        for depth, key in enumerate(self.path):
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError):
                holder = "observation" + "".join(f"[{key!r}]" for key in self.path[:depth])
                raise Misfit(f"an {holder} without {key!r}, which is in its observation_space") from None
        return observation

    def checked(self, observation: Any) -> np.ndarray:
        """The value as an array of the space's shape. A type whose conversion would lose values is refused."""
        array = np.asarray(self.find(observation))
        shape, dtype = self.space.shape, self.space.dtype
        if array.shape != shape:
            raise Misfit(f"an {self.name} of shape {array.shape}; its observation_space has {shape}")
        wanted = np.uint8 if is_image(self.space) else np.float32
        if array.dtype != dtype and not np.can_cast(array.dtype, wanted, "same_kind"):
            raise Misfit(f"an {self.name} of type {array.dtype}; its observation_space has {dtype}")
        return array

    def vector(self, observation: Any) -> np.ndarray:
        """Numbers unchanged, choices as one-hot vectors."""
        if isinstance(self.space, (spaces.Box, spaces.MultiBinary)):
            return self.checked(observation).reshape(-1)
        value = self.find(observation)
        if not self.space.contains(value):
            raise Misfit(f"the {self.name} {value!r:.60}, which is not in its observation_space {self.space}")
        return np.asarray(spaces.flatten(self.space, value))


class Reader(NamedTuple):
    """Writes observations into rows of the rollout. `write` raises Misfit."""

    shape: tuple[int, ...]
    dtype: str
    write: Callable[[Any, np.ndarray], None]
    parts: tuple[Part, ...] = ()

    def vector(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of rows that can be NaN; none for images."""
        if self.dtype == "float32":
            return rows
        end = self.parts[0].end if self.parts and not self.parts[0].is_image else 0
        return rows.reshape(*rows.shape[: rows.ndim - len(self.shape)], -1)[..., :end].view(np.float32)


def observation_reader(space: spaces.Space, env_id: str) -> Reader:
    leaves = list(_leaves(space, ()))
    unknown = [leaf for leaf in leaves if not isinstance(leaf.space, VECTOR_SPACES)]
    if unknown or not leaves:
        what = f"{unknown[0].name} in " if unknown and unknown[0].path else "the observation space "
        raise InputError(
            f"env.id: {env_id} has {what}{_short(unknown[0].space if unknown else space)}; expected a Box,"
            f" Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them{_remedy(space)}"
        )
    _check_size("observations", space, sum(spaces.flatdim(leaf.space) for leaf in leaves), env_id)
    images = [leaf for leaf in leaves if is_image(leaf.space)]
    vectors = [leaf for leaf in leaves if not is_image(leaf.space)]
    if not images:
        return _vector_reader(vectors)
    if len(leaves) == 1:
        return _image_reader(images[0], env_id)
    return _mixed_reader(vectors, images, env_id)


def _check_size(what: str, space: spaces.Space, size: int, env_id: str) -> None:
    """Called before memory is allocated."""
    if size > MAX_NUMBERS:
        raise InputError(
            f"env.id: {env_id} has {what} of {size:,} numbers ({_short(space)}), at most {MAX_NUMBERS:,} are"
            " supported; use a wrapper that encodes them in fewer"
        )


def _short(space: spaces.Space) -> str:
    text = str(space)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _remedy(space: spaces.Space) -> str:
    """Suggests a wrapper that keeps the readable parts of a Dict."""
    if not isinstance(space, spaces.Dict):
        return ""
    if any(type(part).__module__.startswith("minigrid.") for part in space.values()):
        return "; --set env.wrappers=[minigrid.wrappers:ImgObsWrapper] keeps the image alone"
    keys = [
        key
        for key, part in space.items()
        if all(isinstance(leaf.space, VECTOR_SPACES) for leaf in _leaves(part, ()))
    ]
    wrapper = f"{{gymnasium.wrappers:FilterObservation: {{filter_keys: [{', '.join(keys)}]}}}}"
    return f"; --set 'env.wrappers=[{wrapper}]' keeps the others" if keys else ""


def first_leaf(space: spaces.Space) -> Leaf:
    return _leaves(space, ())[0]


def _leaves(space: spaces.Space, path: tuple[Any, ...]) -> list[Leaf]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, part in enumerate(space) for leaf in _leaves(part, (*path, key))]
    return [Leaf(space, path)]


def is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


def _vector_reader(leaves: list[Leaf]) -> Reader:
    sizes = [spaces.flatdim(leaf.space) for leaf in leaves]
    if len(leaves) == 1 and isinstance(leaves[0].space, spaces.Box) and len(leaves[0].space.shape) == 1:
        return _plain_reader(leaves[0])
    ends = np.cumsum(sizes).tolist()

    def write(observation: Any, row: np.ndarray) -> None:
        for leaf, size, end in zip(leaves, sizes, ends, strict=True):
            row[end - size : end] = leaf.vector(observation)

    return Reader((ends[-1],), "float32", write)


def _plain_reader(leaf: Leaf) -> Reader:
    """One flat Box, the usual case: a matching array is copied without further checks."""
    shape, dtype = leaf.space.shape, leaf.space.dtype
    assert shape is not None

    def write(observation: Any, row: np.ndarray) -> None:
        if type(observation) is np.ndarray and observation.shape == shape and observation.dtype == dtype:
            row[:] = observation
        else:
            row[:] = leaf.checked(observation)

    return Reader(shape, "float32", write)


def _image_reader(leaf: Leaf, env_id: str) -> Reader:
    """Height, width, channels; stacked frames become channels."""
    shape = leaf.space.shape
    assert shape is not None
    arranged: tuple[int, ...]
    arrange: Callable[[np.ndarray], np.ndarray]
    if len(shape) == 2:
        arranged, arrange = (*shape, 1), lambda image: image[..., None]
    elif len(shape) == 4:
        stack, height, width, channels = shape
        arranged = (height, width, stack * channels)
        arrange = lambda image: np.moveaxis(image, 0, 2).reshape(arranged)  # noqa: E731
    elif shape[2] <= MAX_CHANNELS:
        arranged, arrange = shape, lambda image: image
    elif shape[0] <= MAX_CHANNELS:
        arranged, arrange = (shape[1], shape[2], shape[0]), lambda image: np.moveaxis(image, 0, 2)
    else:
        raise InputError(
            f"env.id: {env_id} has images of shape {shape} ({leaf.name}); expected height x width x channels"
            f" with at most {MAX_CHANNELS} channels"
        )

    def write(observation: Any, row: np.ndarray) -> None:
        row[...] = arrange(leaf.checked(observation))

    return Reader(arranged, "uint8", write)


def _mixed_reader(vectors: list[Leaf], images: list[Leaf], env_id: str) -> Reader:
    readers = [_vector_reader(vectors)] if vectors else []
    readers += [_image_reader(leaf, env_id) for leaf in images]
    parts, offset = [], 0
    for reader in readers:
        part = Part(reader.dtype == "uint8", reader.shape, offset)
        parts.append(part)
        offset = -(-part.end // PART_ALIGNMENT) * PART_ALIGNMENT

    def write(observation: Any, row: np.ndarray) -> None:
        for reader, part in zip(readers, parts, strict=True):
            place = row[part.offset : part.end]
            reader.write(observation, place.view(reader.dtype).reshape(reader.shape))

    return Reader((offset,), "uint8", write, tuple(parts))


class ActionWriter(NamedTuple):
    """Converts a row of the rollout into an action of the environment."""

    spec: ActionSpec
    write: Callable[[np.ndarray], Any]

    @property
    def num_components(self) -> int:
        return len(self.spec.sizes) if self.spec.kind == "categorical" else self.spec.sizes[0]

    def read_mask(self, info: dict[str, Any]) -> np.ndarray:
        """[K] uint8, from one array for all choices or one for each component."""
        if "action_mask" not in info:
            raise Misfit("no info['action_mask']; env.action_masks requires one for every observation")
        given = info["action_mask"]
        parts = given if isinstance(given, (tuple, list)) else [given]
        mask = np.concatenate([np.ravel(part) for part in parts]) != 0
        expected = sum(self.spec.sizes)
        if len(mask) != expected:
            raise Misfit(f"an info['action_mask'] of {len(mask)} numbers; expected {expected}")
        if not all(part.any() for part in self._components(mask)):
            raise Misfit("an info['action_mask'] that allows nothing; expected at least one choice")
        return mask.astype(np.uint8)

    def _components(self, mask: np.ndarray) -> list[np.ndarray]:
        return np.split(mask, np.cumsum(self.spec.sizes)[:-1])

    def allowed(self, action: np.ndarray, mask: np.ndarray) -> np.ndarray:
        choices = [part.nonzero()[0] for part in self._components(mask)]
        rows = [some[int(wanted) % len(some)] for some, wanted in zip(choices, action, strict=True)]
        return np.array(rows, np.float32)

    def random_rows(self, draws: np.random.Generator, num: int) -> np.ndarray:
        """[num, components]: actions like those of an untrained policy."""
        shape = (num, self.num_components)
        if self.spec.kind == "gaussian":
            return draws.standard_normal(shape, np.float32)
        most = 2 if self.spec.kind == "bernoulli" else np.array(self.spec.sizes)
        return draws.integers(0, most, shape).astype(np.float32)


def action_writer(space: spaces.Space, env_id: str) -> ActionWriter:
    writer = _action_writer(space, env_id)
    _check_size("actions", space, sum(writer.spec.sizes), env_id)
    return writer


def _action_writer(space: spaces.Space, env_id: str) -> ActionWriter:
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
        return _box_writer(space)
    raise InputError(
        f"env.id: {env_id} has the action space {space}; expected Discrete, MultiDiscrete, MultiBinary or a"
        " Box of floats"
    )


def box_scale(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half the range and the middle of each dimension; the environment's action is `output * half + middle`."""
    lower, upper = (
        np.where(abs(bound) < NO_BOUND, bound.astype(np.float64), np.nan) for bound in (low, high)
    )
    bottom = np.nan_to_num(np.where(np.isnan(lower), upper - 2, lower), nan=-1.0)
    top = np.nan_to_num(np.where(np.isnan(upper), lower + 2, upper), nan=1.0)
    return ((top - bottom) / 2).astype(np.float32), ((top + bottom) / 2).astype(np.float32)


def _box_writer(space: spaces.Box) -> ActionWriter:
    """The outputs -1 to 1 cover the bounds, or 2 units from a single bound. Only the environment's action is clipped."""
    low, high, shape, dtype = space.low.reshape(-1), space.high.reshape(-1), space.shape, space.dtype
    half, middle = box_scale(low, high)
    spec = ActionSpec("gaussian", (low.size,), tuple(map(float, low)), tuple(map(float, high)))

    def write(row: np.ndarray) -> np.ndarray:
        scaled = row * half + middle
        return np.minimum(np.maximum(scaled, low), high).reshape(shape).astype(dtype, copy=False)

    return ActionWriter(spec, write)


# --- spaces that are saved with a policy --------------------------------------------------------------------


def spaces_as_text(observation: spaces.Space, action: spaces.Space) -> str:
    """JSON; empty if a space is unknown or very large."""
    try:
        text = json.dumps([_plain(observation), _plain(action)])
    except TypeError:
        return ""
    return text if len(text) <= MAX_TEXT else ""


def spaces_from_text(text: str) -> tuple[spaces.Space, spaces.Space]:
    """ValueError or TypeError for text that `spaces_as_text` did not write."""
    plain = json.loads(text)
    if sum(_size(*values) for values in plain) > MAX_NUMBERS:
        raise ValueError("impossible spaces")
    try:
        observation, action = (_space(*values) for values in plain)
    except AssertionError as error:  # of Gymnasium
        raise ValueError("impossible spaces") from error
    return observation, action


def _size(kind: str, *values: Any) -> int:
    """Numbers for which memory is needed."""
    if kind in ("Dict", "Tuple"):
        return sum(_size(*(part[1] if kind == "Dict" else part)) for part in values[0])
    return math.prod(values[0]) if kind in ("Box", "MultiBinary") else 0


def _plain(space: spaces.Space) -> list[Any]:
    if isinstance(space, spaces.Dict) and all(isinstance(key, str) for key in space):
        return ["Dict", [[key, _plain(part)] for key, part in space.items()]]
    if isinstance(space, spaces.Tuple):
        return ["Tuple", [_plain(part) for part in space]]
    if isinstance(space, spaces.Box):
        bounds = [space.low, space.high]
        values = [bound.min().item() if bound.min() == bound.max() else bound.tolist() for bound in bounds]
        return ["Box", space.shape, space.dtype.name, *values]
    if isinstance(space, spaces.Discrete):
        return ["Discrete", int(space.n), int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        return ["MultiDiscrete", space.nvec.tolist(), space.dtype.name, space.start.tolist()]
    if isinstance(space, spaces.MultiBinary):
        return ["MultiBinary", space.shape]
    raise TypeError(f"{space} is unknown")


def _space(kind: str, *values: Any) -> spaces.Space:
    if kind == "Dict":
        return spaces.Dict(OrderedDict((str(key), _space(*part)) for key, part in values[0]))
    if kind == "Tuple":
        return spaces.Tuple([_space(*part) for part in values[0]])
    if kind == "Discrete":
        return spaces.Discrete(values[0], start=values[1])
    if kind == "MultiDiscrete":
        nvec, dtype, start = values
        return spaces.MultiDiscrete(np.array(nvec), np.dtype(dtype).type, start=np.array(start))
    if kind == "MultiBinary":
        [shape] = values
        return spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
    if kind != "Box":
        raise ValueError("unknown space")
    shape, dtype = values[0], np.dtype(values[1]).type
    low, high = (np.full(shape, bound, dtype) for bound in values[2:])
    return spaces.Box(low, high, dtype=dtype)
