"""One Gymnasium environment inside a slice: keyed resets, checked observations, saved and restored states.

A state is the actions since the keyed reset. Restoring replays them and compares the observation and the rewards.
An environment with `get_state()` and `set_state(arrays)`, in plain arrays, restores itself.
"""

import io
import json
import math
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from parallel_ppo.envs.spaces import Misfit, action_writer, observation_reader
from parallel_ppo.exits import EnvironmentFault, NumbersError, is_interruption
from parallel_ppo.keyed import integer_seed
from parallel_ppo.machine.signals import TimeUp, time_limit
from parallel_ppo.printable import one_line

FOREIGN = (str(Path(__file__).resolve().parents[1]), sysconfig.get_paths()["stdlib"], "<")  # not user code
MAX_REPLAY = 10_000
CLOSE_PATIENCE = 3.0  # seconds; the replay check closes several environments within 10
LARGEST = float(np.finfo(np.float32).max)
TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # their only state is the number of steps


def close(env: gymnasium.Env) -> bool:
    """Ignores errors; False if the environment did not return in time."""
    try:
        with time_limit(CLOSE_PATIENCE):
            env.close()
    except TimeUp:
        return False
    except BaseException as error:
        if is_interruption(error):
            raise
    return True


class Single:
    """Every fault of the environment is one line that names it. `index` counts all environments of the run."""

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        name: str,
        seed: int,
        index: int,
        *,
        fresh_objects: bool = False,
        use_own_state: bool = True,
        action_masks: bool | str = "auto",
    ) -> None:
        """With `fresh_objects`, every episode gets a new environment."""
        self.make_env, self.name, self.seed, self.index = make_env, name, seed, index
        self.fresh_objects, self.use_own_state = fresh_objects, use_own_state
        self._make()
        self.reader = observation_reader(self.env.observation_space, name)
        self.action = action_writer(self.env.action_space, name)
        self.episode, self.num_actions = -1, 0
        self.log = np.empty((MAX_REPLAY, self.action.num_components), np.float32)
        self.rewards = np.empty(MAX_REPLAY)
        self.observation: Any = None
        self.action_masks = action_masks if self.action.spec.kind == "categorical" else False
        self.mask = np.zeros(0, np.uint8)  # [K] of the last observation; empty without masks

    def _make(self) -> None:
        self.env, self.was_used = self.make_env(), False
        self.own = own_state(self.env) if self.use_own_state else None
        try:
            self.own_masks = self.env.get_wrapper_attr("action_masks")  # as for sb3-contrib
        except AttributeError:
            self.own_masks = None

    def close(self) -> bool:
        return close(self.env)

    def reset(self, row: np.ndarray) -> None:
        """Starts the next episode and writes its first observation into `row`."""
        self.episode += 1
        self.num_actions = 0
        if self.fresh_objects and self.was_used:
            self.close()
            self._make()
        self.was_used = True
        try:
            seed = integer_seed(self.seed, "reset", self.index, self.episode)
            self.observation, info = self.env.reset(seed=seed)
            info = self._with_mask(info)
            self.reader.write(self.observation, row)
            if self.action_masks == "auto":
                self.action_masks = "action_mask" in info
            if self.action_masks:
                self.mask = self.action.read_mask(info)
        except BaseException as error:
            self._blame("reset", error)

    def step(self, action: np.ndarray, row: np.ndarray) -> tuple[float, bool, bool]:
        """Returns reward, terminated and truncated; writes the observation into `row`."""
        number = self.num_actions
        self.num_actions += 1
        try:
            self.observation, reward, terminated, truncated, info = self.env.step(self.action.write(action))
            self.info = info
            self.reader.write(self.observation, row)
            try:
                reward = float(reward)
            except TypeError:
                raise Misfit(
                    f"the reward {reward!r:.60}, expected a number",
                    "add a wrapper such as mo_gymnasium.wrappers:LinearReward, or your own gymnasium.RewardWrapper",
                ) from None
            terminated, truncated = bool(terminated), bool(truncated)
            if self.action_masks and not (terminated or truncated):  # no choice follows an end
                self.mask = self.action.read_mask(self._with_mask(info))
        except BaseException as error:
            self._blame("step", error)
        if not -LARGEST <= reward <= LARGEST:
            raise NumbersError(
                f"{self.where} gave the reward {reward}{_too_large(reward)}; fix the environment"
            )
        if number < MAX_REPLAY:
            self.log[number] = action
            self.rewards[number] = reward
        return reward, terminated, truncated

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.own_masks is None or "action_mask" in info:
            return info
        return info | {"action_mask": self.own_masks()}

    def reported(self, key: str) -> float:
        """A number in the last `info`; NaN if there is none."""
        try:
            return float(self.info.get(key, math.nan))
        except (TypeError, ValueError, AttributeError):
            return math.nan

    def allowed(self, action: np.ndarray) -> np.ndarray:
        """The action, or a replacement that the mask allows."""
        return action if not self.mask.size else self.action.allowed(action, self.mask)

    def _blame(self, call: str, error: BaseException) -> NoReturn:
        if is_interruption(error):
            raise error
        advice = "fix the environment"
        if isinstance(error, Misfit):
            detail, advice = f"returned from {call} {error}", error.advice or advice
        else:
            detail = f"raised {type(error).__name__} in {call}{_place(error)}: {one_line(error)}"
        raise EnvironmentFault(self.where, f"{detail}; {advice}") from error

    @property
    def where(self) -> str:
        return f"environment {self.index} ({self.name}, episode {self.episode}, step {self.num_actions})"

    def check(self, row: np.ndarray) -> None:
        """NumbersError if the last observation contains NaN or infinity."""
        numbers = self.reader.vector(row)
        if np.isfinite(numbers).all():
            return
        index = int(np.argmin(np.isfinite(numbers)))
        value = next(beyond_float32(self.observation), float(numbers[index]))
        raise NumbersError(
            f"{self.where} returned an observation with {value} at index {index}{_too_large(value)}; fix the"
            " environment"
        )

    # --- saving and restoring -------------------------------------------------------------------------------

    def get_state(self, last: np.ndarray) -> bytes:
        """`last` is the next observation of the policy."""
        arrays = {"last": last, "episode": np.array(self.episode), "mask": self.mask}
        if self.own is None:
            if self.num_actions <= MAX_REPLAY:
                arrays["actions"] = self.log[: self.num_actions]
                arrays["rewards"] = self._reward_sum()
            return pack_arrays(arrays)
        limit = _time_limit(self.env)
        arrays["elapsed"] = np.array((limit._elapsed_steps or 0) if limit else 0)
        arrays["random"] = _random_state(self.env)
        try:
            own = {f"own.{key}": np.asarray(value) for key, value in self.own.get_state().items()}
            return pack_arrays(arrays | own)
        except BaseException as error:
            self._blame("get_state", error)

    def _reward_sum(self) -> np.ndarray:
        return np.array(zlib.crc32(self.rewards[: self.num_actions].data))

    def set_state(self, state: bytes, row: np.ndarray) -> bool:
        """Writes the observation into `row`. False if the state was not restored and a new episode started."""
        arrays = unpack_arrays(state)
        self.episode = int(arrays["episode"]) - 1
        self.reset(row)
        if self.own is not None and "elapsed" in arrays:
            self._set_own_state(arrays)
            row[...] = arrays["last"]
            self.mask = arrays.get("mask", self.mask)  # version 0.1 saved neither masks nor rewards
            return True
        if "actions" not in arrays:
            return False
        if self._replay(arrays["actions"], row) and np.array_equal(row, arrays["last"]):
            rewards, mask = self._reward_sum(), arrays.get("mask", self.mask)
            if rewards == arrays.get("rewards", rewards) and np.array_equal(mask, self.mask):
                return True
        self.episode -= 1
        self.reset(row)
        return False

    def _replay(self, actions: np.ndarray, row: np.ndarray) -> bool:
        """False if the episode ends or fails, unlike the first time."""
        try:
            return not any(any(self.step(action, row)[1:]) for action in actions)
        except (EnvironmentFault, NumbersError):
            return False

    def _set_own_state(self, arrays: dict[str, np.ndarray]) -> None:
        assert self.own is not None
        try:
            self.own.set_state(
                {key[4:]: value.copy() for key, value in arrays.items() if key.startswith("own.")}
            )
        except BaseException as error:
            self._blame("set_state", error)
        limit = _time_limit(self.env)
        if limit is not None:
            limit._elapsed_steps = int(arrays["elapsed"])  # type: ignore[assignment]
        if len(arrays["random"]):
            self.env.unwrapped.np_random.bit_generator.state = json.loads(arrays["random"].tobytes())


def _place(error: BaseException) -> str:
    """The last line of the user's own code, or else of any code but ours, such as " (game.py line 3)"."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [f for f in frames if not f.filename.startswith(FOREIGN) and "site-packages" not in f.filename]
    frames = own or frames
    return f" ({frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno})" if frames else ""


def _too_large(value: float) -> str:
    return ", which is too large for float32" if math.isfinite(value) else ""


def beyond_float32(observation: Any) -> Iterator[float]:
    """Numbers that are finite, but not in float32."""
    if isinstance(observation, (dict, tuple)):
        for part in observation.values() if isinstance(observation, dict) else observation:
            yield from beyond_float32(part)
        return
    numbers = np.asarray(observation).reshape(-1)
    if numbers.dtype == np.float64:
        yield from numbers[np.isfinite(numbers) & (abs(numbers) > LARGEST)].tolist()


def own_state(env: gymnasium.Env) -> Any:
    """The wrapper or environment with `get_state` and `set_state`; None if an outer wrapper may have its own state."""
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
    """JSON of the generator that `reset(seed=...)` made; empty if there is none."""
    generator = getattr(env.unwrapped, "_np_random", None)
    if generator is None:
        return np.zeros(0, np.uint8)
    state = json.dumps(generator.bit_generator.state)
    return np.frombuffer(state.encode(), np.uint8)


def pack_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """One line of JSON and raw bytes, so that reading executes no code."""
    contiguous = {key: np.asarray(value, order="C") for key, value in arrays.items()}
    for key, value in contiguous.items():
        if value.dtype.kind not in "biuf":
            raise TypeError(f"{key.removeprefix('own.')!r} has type {value.dtype}; expected plain numbers")
    table = [[key, value.dtype.str, value.shape] for key, value in contiguous.items()]
    return json.dumps(table).encode() + b"\n" + b"".join(value.tobytes() for value in contiguous.values())


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    stream = io.BytesIO(data)
    arrays = {}
    for key, dtype, shape in json.loads(stream.readline()):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[key] = np.frombuffer(stream.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return arrays
