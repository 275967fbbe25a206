"""Gymnasium as a kind of environment (`env_families.py`): names, options and rules."""

import importlib.util
from collections.abc import Iterable

from parallel_ppo.arguments import shortened
from parallel_ppo.exits import InputError
from parallel_ppo.settings.named_code import import_for
from parallel_ppo.settings.schema import EnvSettings, Settings

NAME = "Gymnasium"
EXAMPLE = "a registered Gymnasium id such as CartPole-v1"
MODULE = "parallel_ppo.envs.gymnasium"
HAS_LEVELS = False
PLAYS_IN_PYTHON = True
# The packages that register ids of other projects: how the ids begin, module, and name for pip.
PACKAGES = (
    (("ALE/",), "ale_py", "ale-py"),
    (("MiniGrid-", "BabyAI-"), "minigrid", "minigrid"),
    (("Fetch", "Hand", "Adroit", "PointMaze_", "AntMaze_", "FrankaKitchen-"), "gymnasium_robotics",
     "gymnasium-robotics"),
    (("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"), "highway_env",
     "highway-env"),
    (("Vizdoom",), "vizdoom.gymnasium_wrapper", "vizdoom"),
    (("dm_control/",), "shimmy", "shimmy[dm-control]"),
)  # fmt: skip
LIBRARIES = ("gymnasium", "box2d", "mujoco", *(project.partition("[")[0] for *_, project in PACKAGES))
OPTIONS = ("kwargs", "wrappers", "fresh_objects", "action_masks", "info_keys")


def names() -> Iterable[str]:
    import gymnasium

    return gymnasium.registry


def recognizes(env_id: str) -> bool:
    """True: this family is the last."""
    return True


def short_name(env_id: str) -> str:
    return env_id


def canonical(env_id: str) -> str | None:
    """Imports the module that registers the environment or contains its class: the one before the colon, or that of a
    known package.
    """
    module, _, name = env_id.rpartition(":")
    if not module and name not in names():
        for starts, package, project in PACKAGES:
            if name.startswith(starts):
                if importlib.util.find_spec(package.partition(".")[0]) is None:
                    raise InputError(f"env.id: {shortened(env_id)} needs a package: pip install {project}")
                return canonical(f"{package}:{name}")
    holder = import_for("env.id", module, env_id) if module else None
    return env_id if name in names() or callable(getattr(holder, name, None)) else None


def names_code(env_id: str) -> bool:
    return ":" in env_id


def config_name(env_id: str, kind: str, algorithm: str) -> str:
    name = env_id.rpartition(":")[2].rpartition("-v")[0].lower()
    return f"{name}.yaml" if algorithm == "ppo" else f"{name}_{algorithm}.yaml"


def with_id(saved: EnvSettings, env_id: str) -> EnvSettings:
    """Another environment takes different arguments."""
    return EnvSettings(id=env_id)


def check(settings: Settings) -> None:
    pass
