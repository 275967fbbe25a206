"""Gymnasium as a slice: environments are stepped one by one, and reset in the same step with keyed seeds."""

import functools
import os
import sys
from typing import Any

import gymnasium
import numpy as np

from parallel_ppo.envs import replay_check
from parallel_ppo.envs.contract import EnvSpec, ReplayCheck, Step, View
from parallel_ppo.envs.single import CLOSE_PATIENCE, MAX_REPLAY, Single, close
from parallel_ppo.envs.spaces import spaces_as_text
from parallel_ppo.exits import EnvironmentFault, InputError, NumbersError
from parallel_ppo.printable import described, printable
from parallel_ppo.settings.named_code import calling_user_code, find, import_for
from parallel_ppo.settings.schema import EnvSettings
from parallel_ppo.storage import working_folder

OWN_STATE_FACTOR = 4  # how much an environment's own state may grow from its first size
OWN_STATE_LEAST = 1 << 20
HEADER_BYTES = 4096
USUAL_FPS = 30  # if the environment does not set `render_fps`


def make(settings: EnvSettings, render_mode: str | None = None) -> gymnasium.Env:
    """One environment with the user's arguments and wrappers, or InputError."""
    kwargs = dict(settings.kwargs) | ({"render_mode": render_mode} if render_mode else {})
    module, _, name = settings.id.rpartition(":")
    holder = import_for("env.id", module, settings.id) if module else None
    working_folder.enter_that_of(module)
    with calling_user_code(f"env.id: {settings.id} cannot be made", _advice_on_arguments):
        if name in gymnasium.registry or holder is None:
            env = gymnasium.make(settings.id, disable_env_checker=True, **kwargs)  # `Single` checks it
        else:
            env = getattr(holder, name)(**kwargs)  # a class or a function
    if not all(hasattr(env, name) for name in ("observation_space", "action_space", "reset", "step")):
        raise InputError(
            f"env.id: {settings.id} made a {type(env).__name__} without spaces, reset or step; expected a"
            " gymnasium.Env"
        )
    for entry in settings.wrappers:
        path, options = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        env = _wrap(env, path, options)
    return env


def _advice_on_arguments(error: BaseException) -> str:
    is_about_them = isinstance(error, TypeError) and "argument" in str(error)
    return "; arguments of its constructor are given in env.kwargs, as {name: value}" if is_about_them else ""


def _wrap(env: gymnasium.Env, path: str, options: dict[str, Any]) -> gymnasium.Env:
    wrapper = find("env.wrappers", path)
    working_folder.enter_that_of(path.rpartition(":")[0])
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()
    }
    with calling_user_code(f"env.wrappers: {path} cannot wrap {env}"):
        return wrapper(env, **options)


def probe(settings: EnvSettings) -> EnvSpec:
    """Describes an environment after a reset and a step. Every problem is an InputError."""
    [single] = _singles(settings, 0, range(1))
    try:
        capacity = _try(single)
    except EnvironmentFault as error:
        raise InputError(f"env.id: {settings.id} {error.detail}") from error.__cause__
    except NumbersError as error:
        detail = str(error).removeprefix(single.where)
        raise InputError(f"env.id: {settings.id}{detail}") from None
    finally:
        has_closed = single.close()
    if not has_closed:
        raise InputError(f"env.id: {settings.id} did not return from close within {CLOSE_PATIENCE:g} s")
    return EnvSpec(
        single.reader.shape,
        single.reader.dtype,
        single.action.spec,
        capacity,
        single.reader.parts,
        single.action_masks is True,
        spaces_as_text(single.env.observation_space, single.env.action_space),
    )


def _try(single: Single) -> int:
    """Tries a reset, a step and a saved state; returns the bytes to reserve for a state."""
    row = np.zeros(single.reader.shape, single.reader.dtype)
    single.reset(row)
    single.check(row)
    single.step(single.allowed(np.zeros(single.action.num_components, np.float32)), row)
    single.check(row)
    size = len(single.get_state(row))
    if single.own is not None:
        return max(OWN_STATE_LEAST, OWN_STATE_FACTOR * size)
    return size + HEADER_BYTES + MAX_REPLAY * 4 * single.action.num_components


def check_replay(settings: EnvSettings) -> ReplayCheck:
    bare = settings.model_copy(update={"wrappers": []})
    make_bare = functools.partial(make, bare) if settings.wrappers else None
    return replay_check.in_a_child(functools.partial(make, settings), make_bare, settings.id)


def spaces(settings: EnvSettings) -> tuple[gymnasium.Space, gymnasium.Space]:
    env = make(settings)
    found = env.observation_space, env.action_space
    close(env)
    return found


def warm_up() -> None:
    """Nothing: the import of this module is enough."""


def film_fps(settings: EnvSettings) -> int:
    """Renders in a separate environment, because a reset would change the episodes."""
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame prints errors without a screen
    problem = ""
    env = make(settings)
    try:
        if "rgb_array" not in env.metadata.get("render_modes", []):
            known = ", ".join(map(str, env.metadata.get("render_modes", []))) or "none"
            problem = f"it has no render mode 'rgb_array' (it has: {known})"
        else:
            env.close()
            env = make(settings, "rgb_array")
            env.reset(seed=0)
            picture = np.asarray(env.render())
            if picture.ndim != 3 or picture.shape[2] not in (3, 4) or picture.dtype != np.uint8:
                found = f"{picture.dtype} of shape {picture.shape}"
                problem = f"its picture is {found}; expected uint8, height x width x 3"
    except InputError:
        raise
    except Exception as error:
        problem = described(error)
    finally:
        env.close()
    if problem:
        raise InputError(f"{settings.id} cannot be rendered: {problem}")
    return int(env.metadata.get("render_fps") or USUAL_FPS)


def _singles(
    settings: EnvSettings, seed: int, indices: range, render_mode: str | None = None
) -> list[Single]:
    make_env = functools.partial(make, settings, render_mode)
    fresh = settings.fresh_objects is True
    masks = settings.action_masks
    first = Single(make_env, settings.id, seed, indices[0], fresh_objects=fresh, action_masks=masks)
    if first.own is not None and not _restores_itself(settings.model_dump_json()):
        first.use_own_state, first.own = False, None
    own = first.use_own_state
    options: dict[str, Any] = {"fresh_objects": fresh, "use_own_state": own, "action_masks": masks}
    return [first] + [Single(make_env, settings.id, seed, index, **options) for index in indices[1:]]


@functools.cache
def _restores_itself(settings: str) -> bool:
    make_env = functools.partial(make, EnvSettings.model_validate_json(settings))
    return replay_check.restores_itself(make_env, "")


class GymnasiumSlice:
    def __init__(
        self, *, settings: EnvSettings, seed: int, first_env: int, num_envs: int, num_views: int = 0
    ) -> None:
        """The first `num_views` environments can be rendered."""
        self.num_views, self.info_keys = num_views, settings.info_keys
        indices = range(first_env, first_env + num_envs)
        self.singles = _singles(settings, seed, indices, "rgb_array" if num_views else None)
        reader = self.singles[0].reader
        self.vector = reader.vector
        self.rows = np.zeros((num_envs, *reader.shape), reader.dtype)

    @property
    def action_mask(self) -> np.ndarray | None:
        return np.stack([single.mask for single in self.singles]) if self.singles[0].mask.size else None

    def reset(self) -> np.ndarray:
        for single, row in zip(self.singles, self.rows, strict=True):
            single.reset(row)
        self._check()
        return self.rows.copy()

    def step(self, action: np.ndarray) -> Step:
        n, rows, final = len(self.singles), self.rows, None
        reward, start, cut = np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)
        success, info = np.full(n, -1, np.int8), np.zeros((n, len(self.info_keys)), np.float32)
        for index, single in enumerate(self.singles):
            row = rows[index]
            reward[index], terminated, truncated = single.step(action[index], row)
            if terminated or truncated:
                start[index] = True
                solved = single.reported("is_success")
                success[index] = -1 if np.isnan(solved) else solved > 0
                info[index] = [single.reported(key) for key in self.info_keys]
                if not terminated:
                    single.check(row)
                    cut[index] = True
                    final = np.zeros_like(rows) if final is None else final
                    final[index] = row
                single.reset(row)
        self._check()
        return Step(rows.copy(), reward, start, cut, final, None, success, info)

    def _check(self) -> None:
        if not np.isfinite(self.vector(self.rows)).all():
            for single, row in zip(self.singles, self.rows, strict=True):
                single.check(row)

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
            if not single.close():
                line = f"{single.where} did not return from close within {CLOSE_PATIENCE:g} s; ignored"
                print(f"warning: {printable(line)}", file=sys.stderr)
                return  # the others would not return either


make_slice = GymnasiumSlice
