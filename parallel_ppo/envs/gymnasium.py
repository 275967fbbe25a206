"""Gymnasium behind the slice contract: environments stepped singly, reset in the same step with keyed seeds."""

import contextlib
import importlib
import time
from typing import Any

import gymnasium
import numpy as np

from parallel_ppo.envs.contract import EnvSpec, Step, View
from parallel_ppo.envs.single import MAX_REPLAY, Single, not_finite, one_line
from parallel_ppo.exits import EnvironmentFault, InputError
from parallel_ppo.settings.schema import EnvSettings

OWN_STATE_FACTOR = 4  # an environment's own state may grow to this many times its first size
OWN_STATE_LEAST = 1 << 20
HEADER_BYTES = 4096
TRIAL_STEPS = 30
TRIAL_SECONDS = 0.2


def make(settings: EnvSettings, render_mode: str | None = None) -> gymnasium.Env:
    """One environment with the user's arguments and wrappers; InputError names what is wrong with it."""
    kwargs = dict(settings.kwargs) | ({"render_mode": render_mode} if render_mode else {})
    try:
        env = gymnasium.make(settings.id, disable_env_checker=True, **kwargs)  # `Single` checks, in one line
    except Exception as error:
        raise InputError(
            f"env.id: {settings.id} cannot be made ({type(error).__name__}: {one_line(error)})"
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
            f"env.wrappers: cannot find {path!r} ({one_line(error)}); expected module:Class"
        ) from None
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()
    }
    try:
        return wrapper(env, **options)
    except Exception as error:
        raise InputError(
            f"env.wrappers: {path} cannot wrap {env.spec.id if env.spec else env} ({type(error).__name__}: {one_line(error)})"
        ) from None


def probe(settings: EnvSettings) -> EnvSpec:
    """Make one environment, try a reset and a step, and describe it. Every misfit is an InputError."""
    env = make(settings)
    try:
        single = Single(env, settings.id, seed=0, index=0)
        try:
            capacity = _try(single)
        except EnvironmentFault as error:
            raise InputError(f"env.id: {settings.id} {error.detail}") from None
        reader = single.reader
        return EnvSpec(reader.shape, reader.dtype, single.action.spec, True, capacity, reader.parts)
    finally:
        _close(env)


def _try(single: Single) -> int:
    """A reset, a step and a saved state; returns the bytes to reserve for one."""
    row = np.zeros(single.reader.shape, single.reader.dtype)
    single.reset(row)
    _check_trial(single, row)
    reward, *_ = single.step(np.zeros(single.action.num_components, np.float32), row)
    _check_trial(single, row)
    if not np.isfinite(reward):
        raise InputError(f"env.id: {single.name} gave the reward {reward}; fix the environment")
    size = len(single.get_state(row))
    if single.own is not None:
        return max(OWN_STATE_LEAST, OWN_STATE_FACTOR * size)
    return size + HEADER_BYTES + MAX_REPLAY * 4 * single.action.num_components


def _check_trial(single: Single, row: np.ndarray) -> None:
    numbers = single.reader.vector(row)
    if not np.isfinite(numbers).all():
        raise InputError(f"env.id: {single.name} {not_finite(numbers)}")


def _close(env: gymnasium.Env) -> None:
    """What an environment does wrong while it closes no longer matters."""
    with contextlib.suppress(Exception):
        env.close()


def step_seconds(settings: EnvSettings) -> float:
    """How long one step takes here, roughly: enough to tell an arithmetic toy from a simulation."""
    env = make(settings)
    try:
        return float(np.median(_timed_steps(Single(env, settings.id, seed=0, index=0))))
    except EnvironmentFault as error:
        raise InputError(f"env.id: {settings.id} {error.detail}") from None
    finally:
        _close(env)


def _timed_steps(single: Single) -> list[float]:
    row = np.zeros(single.reader.shape, single.reader.dtype)
    action = np.zeros(single.action.num_components, np.float32)
    durations: list[float] = []
    single.reset(row)
    while len(durations) < TRIAL_STEPS and sum(durations) < TRIAL_SECONDS:
        began = time.perf_counter()
        _, terminated, truncated = single.step(action, row)
        durations.append(time.perf_counter() - began)
        if terminated or truncated:
            single.reset(row)
    return durations


class GymnasiumSlice:
    def __init__(
        self, *, settings: EnvSettings, seed: int, first_env: int, num_envs: int, num_views: int = 0
    ) -> None:
        """The first `num_views` environments can be looked at."""
        self.num_views = num_views
        render = "rgb_array" if num_views else None
        self.singles = [
            Single(make(settings, render), settings.id, seed, first_env + index) for index in range(num_envs)
        ]
        reader = self.singles[0].reader
        self.vector = reader.vector
        self.rows = np.zeros((num_envs, *reader.shape), reader.dtype)

    def reset(self) -> np.ndarray:
        for single, row in zip(self.singles, self.rows, strict=True):
            single.reset(row)
        self._check(self.rows)
        return self.rows.copy()

    def step(self, action: np.ndarray) -> Step:
        n, rows, final = len(self.singles), self.rows, None
        reward, start, cut = np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)
        for index, single in enumerate(self.singles):
            row = rows[index]
            reward[index], terminated, truncated = single.step(action[index], row)
            if terminated or truncated:
                start[index] = True
                if not terminated:
                    cut[index] = True
                    final = np.zeros_like(rows) if final is None else final
                    final[index] = row
                single.reset(row)
        self._check(rows)
        if final is not None:
            self._check(final)
        return Step(rows.copy(), reward, start, cut, final, None)

    def _check(self, rows: np.ndarray) -> None:
        numbers = self.vector(rows)
        if not np.isfinite(numbers).all():
            culprit = int(np.argmin(np.isfinite(numbers).all(1)))
            self.singles[culprit].blame_row(numbers[culprit])

    def get_state(self) -> list[bytes]:
        return [single.get_state(row) for single, row in zip(self.singles, self.rows, strict=True)]

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        exact = [
            single.set_state(state, row)
            for single, state, row in zip(self.singles, states, self.rows, strict=True)
        ]
        return self.rows.copy(), np.array(exact)

    def views(self) -> list[View]:
        return [View(np.asarray(single.env.render()), None) for single in self.singles[: self.num_views]]

    def close(self) -> None:
        for single in self.singles:
            _close(single.env)
