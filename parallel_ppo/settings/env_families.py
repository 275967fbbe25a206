"""The table of kinds of environments: names, options and rules. `envs/families.py` makes the environments."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Protocol

from parallel_ppo.arguments import shortened
from parallel_ppo.exits import InputError
from parallel_ppo.settings import gymnasium, procgen
from parallel_ppo.settings.schema import EnvSettings, Settings


class EnvFamily(Protocol):
    """A module such as `procgen.py`."""

    NAME: str
    EXAMPLE: str  # for messages
    MODULE: str  # its environments, in `envs/`
    HAS_LEVELS: bool  # numbered levels that can be solved
    PLAYS_IN_PYTHON: bool  # so the versions of Python and NumPy may decide what it computes

    @property
    def LIBRARIES(self) -> Sequence[str]:
        """Names for pip; the versions of these libraries decide what the environments do."""
        ...

    @property
    def OPTIONS(self) -> Sequence[str]:
        """Keys of the section `env` that only this family reads."""
        ...

    def names(self) -> Iterable[str]: ...

    def recognizes(self, env_id: str) -> bool: ...

    def canonical(self, env_id: str) -> str | None:
        """The spelling that is saved and compared; None for an unknown name."""
        ...

    def short_name(self, env_id: str) -> str: ...

    def names_code(self, env_id: str) -> bool:
        """True if `canonical` may import a module of the user."""
        ...

    def config_name(self, env_id: str, kind: str, algorithm: str) -> str:
        """The name of the shipped configuration, which may not exist."""
        ...

    def with_id(self, saved: EnvSettings, env_id: str) -> EnvSettings:
        """Settings for evaluating a policy in another environment of this family."""
        ...

    def check(self, settings: Settings) -> None:
        """InputError for options that are invalid or do not fit together."""
        ...


FAMILIES: tuple[EnvFamily, ...] = (procgen, gymnasium)  # the first that recognizes a name


def family_of(env_id: str) -> EnvFamily:
    return next(family for family in FAMILIES if family.recognizes(env_id))


def canonical(env_id: str) -> str:
    found = family_of(env_id).canonical(env_id)
    if found is not None:
        return found
    known = [name for family in FAMILIES for name in family.names()]
    close = difflib.get_close_matches(env_id.rpartition(":")[2], known, n=1, cutoff=0.6)
    examples = " or ".join(family.EXAMPLE for family in FAMILIES)
    hint = f"did you mean {close[0]!r}?" if close else f"expected {examples}"
    is_id = ":" not in env_id and "-v" in env_id
    others = (
        f"; an id of another package needs its module in front (module:{shortened(env_id)})" if is_id else ""
    )
    raise InputError(f"env.id: no environment is called {shortened(env_id)!r}; {hint}{others}")


def check_env(settings: Settings) -> None:
    """The rules of this family. Options of other families must have their defaults."""
    env, fields = settings.env, EnvSettings.model_fields
    for family in FAMILIES:
        if family is family_of(env.id):
            family.check(settings)
            continue
        for option in family.OPTIONS:
            value, default = getattr(env, option), fields[option].default
            is_resolved = default == "auto" and value is False
            if value != default and not is_resolved:
                raise InputError(f"env.{option}: is an option of {family.NAME}, not of {env.id}; remove it")
