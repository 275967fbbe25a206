"""The settings that decide what is learned: the fields of the schema that are not marked `NotLearning`.

Plain data suffices, so an untrusted config.yaml is compared without importing the code that it names.
"""

from collections.abc import Mapping
from typing import Any

from parallel_ppo.settings.schema import SCHEDULE_ENDS, Learning, NotLearning, Settings


def learning_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The learning settings of a parsed config.yaml, by dotted key, with defaults for missing keys. Unknown keys
    of a learning section count, because another version may have written them.
    """
    values = {}
    for section, section_field in Settings.model_fields.items():
        content = config.get(section)
        given = dict(content) if isinstance(content, Mapping) else {}
        section_decides = NotLearning not in section_field.metadata
        for key, field in section_field.annotation.model_fields.items():  # type: ignore[union-attr]
            value = given.pop(key, field.default)
            if Learning in field.metadata or (section_decides and NotLearning not in field.metadata):
                values[f"{section}.{key}"] = value
        if section_decides:
            values |= {f"{section}.{key}": value for key, value in given.items()}
    return values


def learning_settings(settings: Settings) -> dict[str, Any]:
    """The learning settings by dotted key; derived sizes replace automatic values."""
    return learning_values(settings.model_dump()) | {
        "env.slice_envs": settings.sizes.slice_envs,
        "training.lane_samples": max(settings.sizes.microbatch_sizes),
        "recurrence.sequence_length": settings.sizes.sequence_length,
    }


def learning_sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """The learning settings in the form of a config.yaml."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in learning_values(settings.model_dump()).items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def only_learning(settings: Settings) -> Settings:
    """The same settings with defaults for all keys that do not decide what is learned."""
    return Settings.model_validate(learning_sections(settings))


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first key whose value differs between two results of `learning_values`."""
    keys = dict.fromkeys((*one, *other))
    return next((key for key in keys if key not in one or key not in other or one[key] != other[key]), None)


def changed_learning_setting(saved: Settings, given: Settings) -> str | None:
    """A line that names a learning setting which differs and must not change on resume, or None."""
    was, now = (
        {key: value for key, value in learning_settings(settings).items() if key not in SCHEDULE_ENDS}
        for settings in (saved, given)
    )
    key = first_difference(was, now)
    if key is None:
        return None
    return f"{key}: is {was[key]!r} in the saved run and cannot change to {now[key]!r}; start a new run"


def changed_schedule(saved: Settings, given: Settings) -> dict[str, tuple[Any, Any]]:
    """The ends of schedules that differ, by key: before and now."""
    was, now = learning_settings(saved), learning_settings(given)
    return {key: (was[key], now[key]) for key in SCHEDULE_ENDS if was[key] != now[key]}
