"""Gymnasium as a family of environments (`env_families.py`): its names, options and rules."""

import difflib

from parallel_ppo.arguments import shortened
from parallel_ppo.exits import InputError
from parallel_ppo.settings import procgen
from parallel_ppo.settings.named_code import import_for
from parallel_ppo.settings.schema import EnvSettings, Settings

NAME = "Gymnasium"
MODULE = "parallel_ppo.envs.gymnasium"
HAS_LEVELS = False
OPTIONS = ("kwargs", "wrappers", "fresh_objects", "action_masks")


def recognizes(env_id: str) -> bool:
    """The family of all names that no other family recognizes."""
    return True


def short_name(env_id: str) -> str:
    return env_id


def canonical(env_id: str) -> str:
    """The same name. Imports the module in front of the colon, which registers the environment or contains its
    class.
    """
    import gymnasium

    module, _, name = env_id.rpartition(":")
    holder = import_for("env.id", module, env_id) if module else None
    if name in gymnasium.registry or callable(getattr(holder, name, None)):
        return env_id
    close = difflib.get_close_matches(name, [*procgen.GAMES, *gymnasium.registry], n=1, cutoff=0.6)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else "expected a Procgen game such as coinrun or a registered Gymnasium id such as CartPole-v1"
    )
    raise InputError(f"env.id: no environment is called {shortened(env_id)!r}; {hint}")


def names_code(env_id: str) -> bool:
    return ":" in env_id


def config_name(env_id: str, kind: str, algorithm: str) -> str:
    name = env_id.rpartition(":")[2].rpartition("-v")[0].lower()
    return f"{name}.yaml" if algorithm == "ppo" else f"{name}_{algorithm}.yaml"


def with_id(saved: EnvSettings, env_id: str) -> EnvSettings:
    """Another environment takes other arguments."""
    return EnvSettings(id=env_id)


def check(settings: Settings) -> None:
    pass
