"""One Gymnasium environment inside a slice: keyed resets, checked observations, a state that can be saved and restored.

The state is the keyed reset plus the actions since; restoring replays them and compares the observation. An environment that
offers `get_state()`/`set_state(arrays)` in plain arrays is asked instead.
"""

import io
import json
import traceback
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from parallel_ppo.envs.spaces import Misfit, action_writer, observation_reader
from parallel_ppo.exits import EnvironmentFault, NumbersError
from parallel_ppo.keyed import integer_seed

MAX_REPLAY = 10_000
TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # their only state is the number of steps


class Single:
    """`index` counts over all environments of the run. What the environment does wrong ends in one line that names it."""

    def __init__(self, env: gymnasium.Env, name: str, seed: int, index: int) -> None:
        self.env, self.name, self.seed, self.index = env, name, seed, index
        self.reader = observation_reader(env.observation_space, name)
        self.action = action_writer(env.action_space, name)
        self.episode, self.num_actions = -1, 0
        self.log = np.empty((MAX_REPLAY, self.action.num_components), np.float32)
        self.own = own_state(env)

    def reset(self, row: np.ndarray) -> None:
        """Opens the next episode and writes its first observation into `row`."""
        self.episode += 1
        self.num_actions = 0
        try:
            observation, _ = self.env.reset(seed=integer_seed(self.seed, "reset", self.index, self.episode))
            self.reader.write(observation, row)
        except Exception as error:
            self._blame("reset", error)

    def step(self, action: np.ndarray, row: np.ndarray) -> tuple[float, bool, bool]:
        """Reward, terminated, truncated; the observation goes into `row`."""
        if self.num_actions < MAX_REPLAY:
            self.log[self.num_actions] = action
        self.num_actions += 1
        try:
            observation, reward, terminated, truncated, _ = self.env.step(self.action.write(action))
            self.reader.write(observation, row)
            return float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            self._blame("step", error)

    def _blame(self, call: str, error: Exception) -> NoReturn:
        if isinstance(error, Misfit):
            detail = f"returned from {call} {error}"
        else:
            detail = f"raised {type(error).__name__} in {call}{_place(error)}: {one_line(error)}"
        raise EnvironmentFault(self.where, f"{detail}; fix the environment") from None

    @property
    def where(self) -> str:
        return f"environment {self.index} ({self.name}, episode {self.episode}, step {self.num_actions})"

    def blame_row(self, row: np.ndarray) -> NoReturn:
        """For an observation that is known to hold a NaN or an infinity."""
        raise NumbersError(f"{self.where} {not_finite(row)}")

    # --- saving and restoring ---------------------------------------------------------------------------------------------

    def get_state(self, last: np.ndarray) -> bytes:
        """`last` is the observation that the policy sees next."""
        arrays = {"last": last, "episode": np.array(self.episode)}
        if self.own is None:
            if self.num_actions <= MAX_REPLAY:
                arrays["actions"] = self.log[: self.num_actions]
            return pack_arrays(arrays)
        limit = _time_limit(self.env)
        arrays["elapsed"] = np.array((limit._elapsed_steps or 0) if limit else 0)
        arrays["random"] = _random_state(self.env)
        try:
            own = {f"own.{key}": np.asarray(value) for key, value in self.own.get_state().items()}
            return pack_arrays(arrays | own)
        except Exception as error:
            self._blame("get_state", error)

    def set_state(self, state: bytes, row: np.ndarray) -> bool:
        """Writes the observation into `row`; False if the state could not be reached again and the episode starts anew."""
        arrays = unpack_arrays(state)
        self.episode = int(arrays["episode"]) - 1
        self.reset(row)
        if self.own is not None and "elapsed" in arrays:
            self._set_own_state(arrays)
            row[...] = arrays["last"]
            return True
        if "actions" not in arrays:
            return False
        for action in arrays["actions"]:
            self.step(action, row)
        if np.array_equal(row, arrays["last"]):
            return True
        self.episode -= 1
        self.reset(row)
        return False

    def _set_own_state(self, arrays: dict[str, np.ndarray]) -> None:
        assert self.own is not None
        try:
            self.own.set_state(
                {key[4:]: value.copy() for key, value in arrays.items() if key.startswith("own.")}
            )
        except Exception as error:
            self._blame("set_state", error)
        limit = _time_limit(self.env)
        if limit is not None:
            limit._elapsed_steps = int(arrays["elapsed"])  # type: ignore[assignment]
        if len(arrays["random"]):
            self.env.unwrapped.np_random.bit_generator.state = json.loads(arrays["random"].tobytes())


def _place(error: Exception) -> str:
    """Where in the user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f" ({frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno})" if frames else ""


def not_finite(row: np.ndarray) -> str:
    index = int(np.argmin(np.isfinite(row)))
    return f"returned an observation with {row[index]} at index {index}; fix the environment"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def own_state(env: gymnasium.Env) -> Any:
    """What offers `get_state` and `set_state`; None if a wrapper outside of it may remember something they do not know."""
    while not (hasattr(env, "get_state") and hasattr(env, "set_state")):
        if not isinstance(env, TRANSPARENT):
            return None
        env = env.env
    return env


def _time_limit(env: gymnasium.Env) -> TimeLimit | None:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None


def _random_state(env: gymnasium.Env) -> np.ndarray:
    """Of the generator that `reset(seed=...)` made, as JSON; empty if the environment has none."""
    generator = getattr(env.unwrapped, "_np_random", None)
    if generator is None:
        return np.zeros(0, np.uint8)
    state = json.dumps(generator.bit_generator.state)
    return np.frombuffer(state.encode(), np.uint8)


def pack_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """Plain arrays as one JSON line and raw bytes: reading it back executes nothing."""
    contiguous = {key: np.asarray(value, order="C") for key, value in arrays.items()}
    for key, value in contiguous.items():
        if value.dtype.kind not in "biuf":
            raise TypeError(
                f"{key.removeprefix('own.')!r} has the type {value.dtype}; expected plain numbers"
            )
    table = [[key, value.dtype.str, value.shape] for key, value in contiguous.items()]
    return json.dumps(table).encode() + b"\n" + b"".join(value.tobytes() for value in contiguous.values())


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    stream = io.BytesIO(data)
    arrays = {}
    for key, dtype, shape in json.loads(stream.readline()):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[key] = np.frombuffer(stream.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return arrays
