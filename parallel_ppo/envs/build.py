"""From settings to environments: the one place that tells Procgen from Gymnasium."""

import contextlib
from typing import TYPE_CHECKING

from parallel_ppo.envs.contract import EnvSpec, SliceEnv, Trial
from parallel_ppo.settings import env_names
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.storage import working_folder

if TYPE_CHECKING:
    import gymnasium


def probe(settings: Settings) -> EnvSpec:
    if env_names.procgen_game(settings.env.id) is not None:
        from parallel_ppo.envs import procgen

        return procgen.SPEC
    from parallel_ppo.envs import gymnasium

    with working_folder.kept():
        return gymnasium.probe(settings.env)


def examine(settings: Settings) -> Trial:
    """Whether an episode that is played again comes out the same; Procgen's do."""
    if env_names.procgen_game(settings.env.id) is not None:
        return Trial()
    from parallel_ppo.envs import gymnasium

    return gymnasium.examine(settings.env)


def spaces_of(settings: EnvSettings) -> "tuple[gymnasium.Space, gymnasium.Space]":
    """Of observations and actions, as whoever steps the environment sees them."""
    import gymnasium
    import numpy as np

    if env_names.procgen_game(settings.id) is not None:
        from parallel_ppo.envs.procgen import SPEC

        picture = gymnasium.spaces.Box(0, 255, SPEC.observation_shape, np.uint8)
        return picture, gymnasium.spaces.Discrete(SPEC.action.sizes[0])
    from parallel_ppo.envs.gymnasium import make

    with working_folder.kept(), contextlib.closing(make(settings)) as env:
        return env.observation_space, env.action_space


def warm_up(settings: Settings) -> None:
    """Imports and loads what every worker will need, before they are forked."""
    if env_names.procgen_game(settings.env.id) is not None:
        from parallel_ppo.envs import procgen

        procgen.warm_up()
    else:
        import parallel_ppo.envs.gymnasium  # noqa: F401


def make_slice(settings: Settings, slice_index: int, *, num_views: int = 0) -> SliceEnv:
    """`num_views`: how many of the environments can be looked at."""
    size = settings.shape.slice_envs
    arguments = {
        "settings": settings.env,
        "seed": settings.training.seed,
        "first_env": slice_index * size,
        "num_envs": size,
        "num_views": num_views,
    }
    if env_names.procgen_game(settings.env.id) is not None:
        from parallel_ppo.envs.procgen import ProcgenSlice

        return ProcgenSlice(**arguments)  # type: ignore[arg-type]
    from parallel_ppo.envs.gymnasium import GymnasiumSlice

    return GymnasiumSlice(**arguments)  # type: ignore[arg-type]
