"""The table of families of environments. All that the rest of the project asks about a family is here and,
for environments that exist, in its module of `envs/` (`envs/families.py`).
"""

from collections.abc import Sequence
from typing import Protocol

from parallel_ppo.exits import InputError
from parallel_ppo.settings import gymnasium, procgen
from parallel_ppo.settings.schema import EnvSettings, Settings


class EnvFamily(Protocol):
    """A module such as `procgen.py`."""

    NAME: str
    MODULE: str  # in `envs/`
    HAS_LEVELS: bool  # numbered levels, which are known to be solved or not

    @property
    def OPTIONS(self) -> Sequence[str]:
        """Keys of the section `env` that other families do not read."""
        ...

    def recognizes(self, env_id: str) -> bool: ...

    def canonical(self, env_id: str) -> str:
        """The spelling that is saved and compared; InputError for an unknown name."""
        ...

    def short_name(self, env_id: str) -> str:
        """For people."""
        ...

    def names_code(self, env_id: str) -> bool:
        """Whether the name can make `canonical` import a module of the user."""
        ...

    def config_name(self, env_id: str, kind: str, algorithm: str) -> str:
        """The name of the shipped configuration, which may not exist."""
        ...

    def with_id(self, saved: EnvSettings, env_id: str) -> EnvSettings:
        """Settings of another environment of this family, to evaluate a policy in."""
        ...

    def check(self, settings: Settings) -> None:
        """Raises InputError for options that are invalid or do not fit together."""
        ...


PROCGEN: EnvFamily = procgen
GYMNASIUM: EnvFamily = gymnasium
FAMILIES = (PROCGEN, GYMNASIUM)  # the first that recognizes a name


def family_of(env_id: str) -> EnvFamily:
    return next(family for family in FAMILIES if family.recognizes(env_id))


def check_options(env: EnvSettings) -> None:
    """Options of other families must have their defaults."""
    for family in FAMILIES:
        if family is family_of(env.id):
            continue
        for option in family.OPTIONS:
            value, default = getattr(env, option), EnvSettings.model_fields[option].default
            is_resolved = default == "auto" and value is False
            if value != default and not is_resolved:
                raise InputError(
                    f"env.{option}: is an option of {family.NAME} and does nothing for {env.id}; remove it"
                )
