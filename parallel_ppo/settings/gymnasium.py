"""Gymnasium as a kind of environment (`env_families.py`): names, options and rules."""

from collections.abc import Iterable

from parallel_ppo.settings.named_code import import_for
from parallel_ppo.settings.schema import EnvSettings, Settings

NAME = "Gymnasium"
EXAMPLE = "a registered Gymnasium id such as CartPole-v1"
MODULE = "parallel_ppo.envs.gymnasium"
HAS_LEVELS = False
OPTIONS = ("kwargs", "wrappers", "fresh_objects", "action_masks")


def names() -> Iterable[str]:
    import gymnasium

    return gymnasium.registry


def recognizes(env_id: str) -> bool:
    """True: this family is the last."""
    return True


def short_name(env_id: str) -> str:
    return env_id


def canonical(env_id: str) -> str | None:
    """Imports the module before the colon, which registers the environment or contains its class."""
    module, _, name = env_id.rpartition(":")
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
