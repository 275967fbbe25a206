"""Procgen as a slice. Slices are created in the process that steps them, because they do not survive a fork."""

import contextlib
import functools
import hashlib
import importlib.util
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_ppo.envs.contract import ActionSpec, EnvSpec, ReplayCheck, Step, View
from parallel_ppo.exits import EnvironmentFault, InputError
from parallel_ppo.keyed import integer_seed
from parallel_ppo.settings.procgen import NATIVE_OPTIONS, game_name, short_name
from parallel_ppo.settings.schema import EnvSettings

if TYPE_CHECKING:
    import gymnasium

STATE_BYTES = 1 << 20  # reserved; 20 to 40 KB are used
# What a game calls of libm, by the calls in its library's machine code; the other games call no function that rounds
# by machine.
LIBM_FUNCTIONS = {
    "bigfish": "pow",
    "bossfight": "sin, cos",
    "caveflyer": "sin, cos, atan2",
    "dodgeball": "atan2",
    "heist": "atan2",
    "jumper": "sin, cos, atan2",
    "ninja": "sin, cos",
    "starpilot": "sin, cos, atan2",
}
SPACES = '[["Box", [64, 64, 3], "uint8", 0, 255], ["Discrete", 15, 0]]'  # see `spaces.spaces_as_text`
SPEC = EnvSpec((64, 64, 3), "uint8", ActionSpec("categorical", (15,)), STATE_BYTES, spaces=SPACES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Procgen imports the old gym, which prints an upgrade notice to stderr."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def problem() -> str | None:
    """Why Procgen cannot be used here, or None."""
    if importlib.util.find_spec("procgen") is None:
        return "Procgen is not installed; pip install 'parallel_ppo[procgen]' (Python 3.10 to 3.12)"
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        return f"Procgen needs NumPy below 2, installed is {np.__version__}; pip install 'numpy<2'"
    return None


def probe(settings: EnvSettings) -> EnvSpec:
    reason = problem()
    if reason is not None:
        raise InputError(f"env.id: {settings.id}: {reason}")
    return SPEC


def check_replay(settings: EnvSettings) -> ReplayCheck:
    """Procgen restores its states exactly."""
    return ReplayCheck(machine_functions=LIBM_FUNCTIONS.get(short_name(settings.id), ""))


def spaces(settings: EnvSettings) -> "tuple[gymnasium.Space, gymnasium.Space]":
    from gymnasium.spaces import Box, Discrete

    return Box(0, 255, SPEC.observation_shape, np.uint8), Discrete(SPEC.action.sizes[0])


def film_fps(settings: EnvSettings) -> int:
    return 15  # the speed at which people play


def warm_up() -> None:
    """Loads the library and its images once (about 2 s); forked processes make environments in milliseconds."""
    _make("coinrun", 1, {"rand_seed": 0}).close()


def _make(game: str, num: int, options: dict[str, Any]) -> Any:
    with _quiet():
        from gym3.libenv import CEnv
        from procgen import ProcgenGym3Env

        # Closed explicitly only: if the garbage collector closes one while another is made, cffi deadlocks.
        CEnv.__del__ = lambda env: None
        return ProcgenGym3Env(num=num, env_name=game, num_threads=0, **options)


def _options(settings: EnvSettings) -> dict[str, Any]:
    """In exploration mode Procgen chooses the level itself and refuses options of levels."""
    chosen = settings.distribution_mode == "exploration"
    left_out = ("num_levels", "start_level") if chosen else ()
    return {option: getattr(settings, option) for option in NATIVE_OPTIONS if option not in left_out}


class ProcgenSlice:
    """One native vector environment; its random stream is part of its state."""

    action_mask = None

    def __init__(
        self, *, settings: EnvSettings, seed: int, first_env: int, num_envs: int, num_views: int = 0
    ) -> None:
        game = game_name(settings.id)
        assert game is not None
        self.game = game
        options = _options(settings) | {"rand_seed": integer_seed(seed, "procgen", first_env)}
        self.native = _make(game, num_envs, options)
        # Rendering costs milliseconds per environment and step, so only copies of the viewed ones render.
        self.copies = _make(game, num_views, options | {"render_mode": "rgb_array"}) if num_views else None

    def reset(self) -> np.ndarray:
        """Returns the first observations; Procgen starts its first episodes when it is made."""
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
        return np.array([info["level_seed"] for info in self.native.get_info()], dtype=np.int32)

    def set_next_levels(self, levels: Mapping[int, int]) -> None:
        """Changes the next level of some environments, by index."""
        states = self.get_state()
        for index, level in levels.items():
            states[index] = with_next_level(states[index], level)
        self.set_state(states)

    def get_state(self) -> list[bytes]:
        return [bytes(state) for state in self.native.callmethod("get_state")]

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The native reader ends the process if the game is another one."""
        others = [name for name in map(_game_of, states) if name != self.game]
        if others:
            raise EnvironmentFault(self.game, f"cannot continue from the saved state of {others[0]!r:.40}")
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


make_slice = ProcgenSlice

# --- first frames -------------------------------------------------------------------------------------------

FRAME_ENVS = 64
END_OF_EPISODE = -1  # an action that ends the episode with this step


@functools.lru_cache(maxsize=4)
def _training_frames(settings: str) -> frozenset[bytes]:
    env = EnvSettings.model_validate_json(settings)
    levels = range(env.start_level, env.start_level + env.num_levels)
    return frozenset(frame for _, frame in first_frames(env, levels))


def first_frames(settings: EnvSettings, levels: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Each level with a hash of its first observation."""
    plain, num_envs = (
        settings.model_copy(update={"use_sequential_levels": False}),
        min(FRAME_ENVS, len(levels)),
    )
    with contextlib.closing(ProcgenSlice(settings=plain, seed=0, first_env=0, num_envs=num_envs)) as env:
        for start in range(0, len(levels), env.native.num):
            part = levels[start : start + env.native.num]
            env.set_next_levels(dict(enumerate(part)))
            frames = env.step(np.full(env.native.num, END_OF_EPISODE)).observation
            yield from zip(part, map(_hashed, frames), strict=False)


def are_training_frames(settings: EnvSettings, frames: np.ndarray) -> np.ndarray:
    """Which observations are the first of a training level."""
    known = _training_frames(settings.model_dump_json())
    return np.array([_hashed(frame) in known for frame in frames])


def _hashed(frame: np.ndarray) -> bytes:
    return hashlib.blake2b(frame.tobytes(), digest_size=16).digest()


# --- the next level in a saved state ------------------------------------------------------------------------

# When an episode ends, Procgen draws the next level between two bounds. A state begins with a version, the name of
# the game (length and characters), twelve options and the size of a grid, all integers of four bytes; the bounds
# follow.
INTEGER = struct.Struct("<i")
BOUNDS = struct.Struct("<ii")
NUM_OPTIONS = 12


def with_next_level(state: bytes, level: int) -> bytes:
    offset = _bounds_offset(state)
    return state[:offset] + BOUNDS.pack(level, level + 1) + state[offset + BOUNDS.size :]


def _bounds_offset(state: bytes) -> int:
    return 2 * INTEGER.size + _name_length(state) + (NUM_OPTIONS + 1) * INTEGER.size


def _game_of(state: bytes) -> str:
    return state[2 * INTEGER.size :][: _name_length(state)].decode(errors="replace")


def _name_length(state: bytes) -> int:
    return INTEGER.unpack_from(state.ljust(2 * INTEGER.size, b"\0"), INTEGER.size)[0]
