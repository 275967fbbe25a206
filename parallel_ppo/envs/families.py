"""Makes environments through the module of their family (`settings/env_families.py` has the table)."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from parallel_ppo.envs.contract import EnvSpec, ReplayCheck, SliceEnv
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.storage import working_folder

if TYPE_CHECKING:
    import gymnasium


class FamilyModule(Protocol):
    """A module such as `envs/procgen.py`."""

    make_slice: Callable[..., SliceEnv]  # settings, seed, first_env, num_envs, num_views

    def probe(self, settings: EnvSettings) -> EnvSpec: ...

    def check_replay(self, settings: EnvSettings) -> ReplayCheck: ...

    def spaces(self, settings: EnvSettings) -> "tuple[gymnasium.Space, gymnasium.Space]": ...

    def warm_up(self) -> None: ...

    def film_fps(self, settings: EnvSettings) -> int: ...

    def are_training_frames(self, settings: EnvSettings, frames: np.ndarray) -> np.ndarray:
        """Only of families with levels."""
        ...


def _module(env_id: str) -> FamilyModule:
    return cast(FamilyModule, importlib.import_module(family_of(env_id).MODULE))


def probe(settings: Settings) -> EnvSpec:
    """Shapes of observations and actions, or InputError."""
    with working_folder.kept():
        return _module(settings.env.id).probe(settings.env)


def check_replay(settings: Settings) -> ReplayCheck:
    return _module(settings.env.id).check_replay(settings.env)


def spaces_of(settings: EnvSettings) -> "tuple[gymnasium.Space, gymnasium.Space]":
    """The spaces of observations and actions, as the user sees them."""
    with working_folder.kept():
        return _module(settings.id).spaces(settings)


def warm_up(settings: Settings) -> None:
    """Loads what every worker needs, before the workers are forked."""
    _module(settings.env.id).warm_up()


def film_fps(settings: EnvSettings) -> int:
    """Frames per second at normal speed; InputError if the environment cannot be rendered."""
    return _module(settings.id).film_fps(settings)


def are_training_frames(settings: EnvSettings, frames: np.ndarray) -> np.ndarray:
    """Which observations are the first of a training level: [n, ...] -> [n] bool."""
    return _module(settings.id).are_training_frames(settings, frames)


def make_slice(settings: Settings, slice_index: int, *, num_views: int = 0) -> SliceEnv:
    """The first `num_views` environments can be rendered."""
    size = settings.sizes.slice_envs
    return _module(settings.env.id).make_slice(
        settings=settings.env,
        seed=settings.training.seed,
        first_env=slice_index * size,
        num_envs=size,
        num_views=num_views,
    )
