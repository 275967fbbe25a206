"""Procgen behind the slice contract. Created in the process that steps it, never across a fork."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from parallel_ppo.envs.contract import ActionSpec, EnvSpec, Step, View
from parallel_ppo.keyed import integer_seed
from parallel_ppo.settings import env_names
from parallel_ppo.settings.schema import PROCGEN_OPTIONS, EnvSettings

STATE_BYTES = 1 << 20  # measured: 20-40 KB; the space is reserved, not used
SPEC = EnvSpec((64, 64, 3), "uint8", ActionSpec("categorical", (15,)), STATE_BYTES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Procgen imports the old gym, which prints an upgrade notice to stderr."""
    kept = sys.stderr
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stderr = kept


def warm_up() -> None:
    """Load the library and its pictures (about 2 s) once, so that processes forked from this one make
    environments in milliseconds.
    """
    _make("coinrun", 1, {"rand_seed": 0}).close()


def _make(game: str, num: int, options: dict[str, Any]) -> Any:
    with _quiet():
        from gym3.libenv import CEnv
        from procgen import ProcgenGym3Env

        # Closed by hand only: closing one while another is made, as the garbage collector would, never ends
        # on a lock of cffi that this thread holds.
        CEnv.__del__ = lambda env: None
        return ProcgenGym3Env(num=num, env_name=game, num_threads=0, **options)


def _options(settings: EnvSettings) -> dict[str, Any]:
    """Where Procgen itself chooses the level, it takes no word about levels."""
    chosen = settings.distribution_mode == "exploration"
    left_out = ("num_levels", "start_level") if chosen else ()
    return {option: getattr(settings, option) for option in PROCGEN_OPTIONS if option not in left_out}


class ProcgenSlice:
    """A slice is one native vector environment, whose random stream belongs to its state."""

    action_mask = None

    def __init__(
        self, *, settings: EnvSettings, seed: int, first_env: int, num_envs: int, num_views: int = 0
    ) -> None:
        game = env_names.procgen_game(settings.id)
        assert game is not None
        options = _options(settings) | {"rand_seed": integer_seed(seed, "procgen", first_env)}
        self.native = _make(game, num_envs, options)
        # Rendering for people costs milliseconds per environment and step, so it is done in copies
        # of those that are looked at.
        self.copies = _make(game, num_views, options | {"render_mode": "rgb_array"}) if num_views else None

    def reset(self) -> np.ndarray:
        """Procgen opens its first episodes when it is made."""
        return self.native.observe()[1]["rgb"]

    def step(self, action: np.ndarray) -> Step:
        self.native.act(action.astype(np.int32).reshape(-1))
        reward, observation, first = self.native.observe()
        first = np.asarray(first, dtype=bool)
        level_seed = level_complete = None
        if first.any():
            infos = self.native.get_info()
            level_seed = np.array([info["prev_level_seed"] for info in infos], dtype=np.int32)
            level_complete = np.array([info["prev_level_complete"] for info in infos], dtype=bool)
        return Step(observation["rgb"], reward, first, None, None, level_seed, level_complete)

    def playing_levels(self) -> np.ndarray:
        """[n] int32: the level of each episode that goes on."""
        return np.array([info["level_seed"] for info in self.native.get_info()], dtype=np.int32)

    def get_state(self) -> list[bytes]:
        return [bytes(state) for state in self.native.callmethod("get_state")]

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        self.native.callmethod("set_state", states)
        return self.native.observe()[1]["rgb"], np.ones(len(states), bool)

    def views(self) -> list[View]:
        assert self.copies is not None, "made without views"
        self.copies.callmethod("set_state", self.native.callmethod("get_state")[: self.copies.num])
        return [View(info["rgb"], int(info["level_seed"])) for info in self.copies.get_info()]

    def close(self) -> None:
        self.native.close()
        if self.copies is not None:
            self.copies.close()
