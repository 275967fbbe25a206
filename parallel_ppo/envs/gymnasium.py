"""Gymnasium behind the slice contract: environments stepped singly, reset in the same step with keyed seeds.

The state of an environment is its keyed reset plus the actions since; restoring replays them and compares the observation.
An environment that offers `get_state()`/`set_state(arrays)` in plain arrays is asked instead.
"""

import importlib
import io
import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from parallel_ppo.config import EnvSettings
from parallel_ppo.envs.contract import EnvSpec, Step, View
from parallel_ppo.envs.spaces import action_writer, observation_reader
from parallel_ppo.exits import InputError, NumbersError
from parallel_ppo.keyed import integer_seed

MAX_REPLAY = 10_000
OWN_STATE_BYTES = 1 << 20
HEADER_BYTES = 4096


def make(settings: EnvSettings, render_mode: str | None = None) -> gymnasium.Env:
    """One environment with the user's arguments and wrappers; InputError names what is wrong with it."""
    kwargs = dict(settings.kwargs) | ({"render_mode": render_mode} if render_mode else {})
    try:
        env = gymnasium.make(settings.id, **kwargs)
    except Exception as error:
        raise InputError(
            f"env.id: {settings.id} cannot be made ({type(error).__name__}: {_one_line(error)})"
        ) from None
    for entry in settings.wrappers:
        path, options = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        env = _wrap(env, path, options)
    return env


def _wrap(env: gymnasium.Env, path: str, options: dict[str, Any]) -> gymnasium.Env:
    module, _, name = path.rpartition(":")
    try:
        wrapper = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"env.wrappers: cannot find {path!r} ({_one_line(error)}); expected module:Class"
        ) from None
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        return wrapper(env, **options)
    except Exception as error:
        raise InputError(
            f"env.wrappers: {path} cannot wrap {env.spec.id if env.spec else env} ({_one_line(error)})"
        ) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def probe(settings: EnvSettings) -> EnvSpec:
    """Make one environment, try a reset and a step, and describe it. Every misfit is an InputError."""
    env = make(settings)
    try:
        reader = observation_reader(env.observation_space, settings.id)
        action = action_writer(env.action_space, settings.id)
        components = len(action.spec.sizes) if action.spec.kind == "categorical" else action.spec.sizes[0]
        own_state = _own_state(env) is not None
        capacity = OWN_STATE_BYTES if own_state else HEADER_BYTES + MAX_REPLAY * 4 * components
        spec = EnvSpec(reader.shape, reader.dtype, action.spec, True, capacity)
        _try(env, settings.id, reader, action)
        return spec
    finally:
        env.close()


def _try(env: gymnasium.Env, env_id: str, reader: Any, action: Any) -> None:
    stage = "reset"
    try:
        observation, _ = env.reset(seed=0)
        _check_observation(
            reader.read(observation), reader.shape, f"env.id: {env_id} returned from reset", InputError
        )
        stage = "step"
        observation, reward, *_ = env.step(
            action.write(
                np.zeros(16384, np.float32)[
                    : len(action.spec.sizes) if action.spec.kind == "categorical" else action.spec.sizes[0]
                ]
            )
        )
        _check_observation(
            reader.read(observation), reader.shape, f"env.id: {env_id} returned from step", InputError
        )
        float(reward)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"env.id: {env_id} raised in {stage} ({type(error).__name__}: {_one_line(error)}); fix the environment"
        ) from None


def _check_observation(row: np.ndarray, shape: tuple[int, ...], what: str, error: type[Exception]) -> None:
    if row.shape != shape:
        raise InputError(f"{what} an observation of shape {row.shape}; its observation_space says {shape}")
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        raise error(
            f"{what} an observation with {'NaN' if np.isnan(row).any() else 'infinity'} at index {int(np.argmin(np.isfinite(row)))}"
        )


def _own_state(env: gymnasium.Env) -> Any:
    inner = env.unwrapped
    return inner if hasattr(inner, "get_state") and hasattr(inner, "set_state") else None


def _time_limit(env: gymnasium.Env) -> TimeLimit | None:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None


class _Single:
    """One environment with the log of its current episode."""

    def __init__(self, settings: EnvSettings, seed: int, index: int) -> None:
        self.env = make(settings)
        self.name, self.seed, self.index = settings.id, seed, index
        self.reader = observation_reader(self.env.observation_space, self.name)
        self.action = action_writer(self.env.action_space, self.name)
        self.episode = -1
        self.actions: list[np.ndarray] = []
        self.last = np.zeros(self.reader.shape, self.reader.dtype)

    def reset(self) -> np.ndarray:
        self.episode += 1
        self.actions = []
        observation, _ = self.env.reset(seed=integer_seed(self.seed, "reset", self.index, self.episode))
        return self._read(observation)

    def step(self, row: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.actions.append(row.copy())
        observation, reward, terminated, truncated, _ = self.env.step(self.action.write(row))
        return self._read(observation), float(reward), bool(terminated), bool(truncated)

    def _read(self, observation: Any) -> np.ndarray:
        row = self.reader.read(observation)
        _check_observation(
            row, self.reader.shape, f"environment {self.index} ({self.name}) returned", NumbersError
        )
        self.last = row
        return row

    def get_state(self) -> bytes:
        own = _own_state(self.env)
        limit = _time_limit(self.env)
        arrays: dict[str, np.ndarray] = {"last": self.last, "episode": np.array(self.episode)}
        if own is not None:
            arrays |= {f"own.{key}": np.asarray(value) for key, value in own.get_state().items()}
            arrays["elapsed"] = np.array(limit._elapsed_steps or 0 if limit else 0)
        elif len(self.actions) <= MAX_REPLAY:
            arrays["actions"] = np.array(self.actions, np.float32)
        return pack_arrays(arrays)

    def set_state(self, state: bytes) -> tuple[np.ndarray, bool]:
        arrays = unpack_arrays(state)
        self.episode = int(arrays["episode"]) - 1
        observation = self.reset()
        own = {key[4:]: value for key, value in arrays.items() if key.startswith("own.")}
        if own:
            _own_state(self.env).set_state(own)
            limit = _time_limit(self.env)
            if limit is not None:
                limit._elapsed_steps = int(arrays["elapsed"])  # type: ignore[assignment]
            self.last = arrays["last"]
            return arrays["last"], True
        if "actions" not in arrays:
            return observation, False
        for row in arrays["actions"]:
            observation = self.step(row)[0]
        if np.array_equal(observation, arrays["last"], equal_nan=True):
            return observation, True
        return self.reset(), False


def pack_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """Plain arrays as one JSON line and raw bytes: reading it back executes nothing."""
    contiguous = {key: np.asarray(value, order="C") for key, value in arrays.items()}
    for key, value in contiguous.items():
        if value.dtype.kind not in "biuf":
            raise InputError(f"get_state: {key!r} has the type {value.dtype}; expected plain numbers")
    header = (
        json.dumps([[key, value.dtype.str, value.shape] for key, value in contiguous.items()]).encode()
        + b"\n"
    )
    return header + b"".join(value.tobytes() for value in contiguous.values())


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    stream = io.BytesIO(data)
    arrays = {}
    for key, dtype, shape in json.loads(stream.readline()):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[key] = np.frombuffer(stream.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return arrays


class GymnasiumSlice:
    def __init__(
        self, *, settings: EnvSettings, seed: int, first_env: int, num_envs: int, num_views: int = 0
    ) -> None:
        self.num_views = num_views
        if num_views:
            settings = settings.model_copy(update={"kwargs": settings.kwargs | {"render_mode": "rgb_array"}})
        self.singles = [_Single(settings, seed, first_env + index) for index in range(num_envs)]

    def reset(self) -> np.ndarray:
        return np.stack([single.reset() for single in self.singles])

    def step(self, action: np.ndarray) -> Step:
        n = len(self.singles)
        rows, final = [], None
        reward, start, cut = np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)
        for index, single in enumerate(self.singles):
            row, reward[index], terminated, truncated = single.step(action[index])
            start[index] = terminated or truncated
            cut[index] = truncated and not terminated
            if cut[index]:
                final = np.zeros((n, *row.shape), row.dtype) if final is None else final
                final[index] = row
            rows.append(single.reset() if start[index] else row)
        return Step(np.stack(rows), reward, start, cut, final, None)

    def get_state(self) -> list[bytes]:
        return [single.get_state() for single in self.singles]

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, bool]:
        restored = [single.set_state(state) for single, state in zip(self.singles, states, strict=True)]
        return np.stack([row for row, _ in restored]), all(exact for _, exact in restored)

    def views(self) -> list[View]:
        return [View(np.asarray(single.env.render()), None) for single in self.singles[: self.num_views]]

    def close(self) -> None:
        for single in self.singles:
            single.env.close()
