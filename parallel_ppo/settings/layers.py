"""Settings from YAML and flags, or one line that names the key, the value and what was expected.

Flags override the file, which overrides the defaults.
"""

import difflib
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parallel_ppo.arguments import shortened
from parallel_ppo.exits import InputError
from parallel_ppo.settings.kinds import ALGORITHM_KINDS, curiosity_defaults
from parallel_ppo.settings.rules import checked
from parallel_ppo.settings.schema import EnvSettings, Settings, TrainingSettings
from parallel_ppo.settings.yaml_files import read_yaml

PLR_EVALUATION_INTERVAL = 10


def load_settings(
    *, file: Path | None, flags: dict[str, Any], base: dict[str, Any] | None = None
) -> Settings:
    """Settings that are valid together. May import the module that `env.id` names."""
    return checked(read_settings(file=file, flags=flags, base=base))


def read_settings(
    *, file: Path | None, flags: dict[str, Any], base: dict[str, Any] | None = None
) -> Settings:
    """Settings whose fields are valid one by one. Imports nothing, so it is safe for untrusted input.

    `flags` maps dotted keys to values. `base` is a layer below the file.
    """
    merged: dict[str, dict[str, Any]] = {}
    for source, layer in (
        ("defaults", base or {}),
        (str(file), read_yaml(file) if file else {}),
        ("flags", nested(flags)),
    ):
        check_sections(layer, source)
        layer = _resolve_envs_per_worker(_resolve_node_workers(layer, source), source)
        for section, values in layer.items():
            _merge(merged.setdefault(section, {}), values)
    _fill_in_algorithm(merged)
    _fill_in_curiosity(merged)
    _fill_in_evaluation(merged)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise InputError(_explain(error)) from None


def _fill_in_algorithm(merged: dict[str, dict[str, Any]]) -> None:
    training, env = merged.setdefault("training", {}), merged.get("env", {})
    kind = ALGORITHM_KINDS.get(str(training.get("algorithm", "ppo")))
    if kind is None:
        return  # the validation that follows reports it
    merged["training"] = training = kind.defaults | training
    if kind.single_pass and "batch_size" not in training:
        num_envs = env.get("num_envs", EnvSettings.model_fields["num_envs"].default)
        n_steps = training.get("n_steps", TrainingSettings.model_fields["n_steps"].default)
        if type(num_envs) is int and type(n_steps) is int:
            training["batch_size"] = max(1, num_envs * n_steps)


def _fill_in_curiosity(merged: dict[str, dict[str, Any]]) -> None:
    section = merged.get("curiosity", {})
    merged["curiosity"] = curiosity_defaults(str(section.get("kind")), section.get("combine")) | section


def _fill_in_evaluation(merged: dict[str, dict[str, Any]]) -> None:
    """Training returns with plr are of the levels that it chose, so evaluations choose the best checkpoint."""
    if merged.get("env", {}).get("level_sampler") == "plr":
        section = {"interval": PLR_EVALUATION_INTERVAL} | merged.get("evaluation", {})
        if section["interval"] and section.get("chooses_best", True):
            merged["evaluation"] = {"chooses_best": True} | section


def _merge(below: dict[str, Any], values: dict[str, Any]) -> None:
    """The key `kwargs.x` sets one argument of the environment and keeps the others."""
    for key, value in values.items():
        name, _, argument = str(key).partition(".")
        if name == "kwargs" and argument:
            below[name] = (below.get(name) or {}) | {argument: value}
        else:
            below[key] = value


def nested(flat: dict[str, Any]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result


def check_sections(layer: dict[str, Any], source: str) -> None:
    for section, values in layer.items():
        if section not in Settings.model_fields:
            hint = _place_of(str(section), list(Settings.model_fields))
            raise InputError(f"{source}: unknown section {repr(section)[:80]}{hint}")
        if not isinstance(values, dict | None):
            raise InputError(f"{source}: section '{section}' must have keys and values, got {values!r:.80}")
    layer.update({section: {} for section, values in layer.items() if values is None})


def _resolve_node_workers(layer: dict[str, Any], source: str) -> dict[str, Any]:
    """Within a layer, `cluster.num_workers` is another name for `parallel.num_workers`."""
    cluster, parallel = layer.get("cluster", {}), layer.get("parallel", {})
    workers = cluster.get("num_workers")
    if workers is None:
        return layer
    if "num_workers" in parallel and parallel["num_workers"] != workers:
        raise InputError(
            f"cluster.num_workers: is {workers!r}, but parallel.num_workers is {parallel['num_workers']!r}"
            f" ({source}); both are the workers of one node, so remove one"
        )
    kept = {key: value for key, value in cluster.items() if key != "num_workers"}
    return layer | {"cluster": kept, "parallel": parallel | {"num_workers": workers}}


def _resolve_envs_per_worker(layer: dict[str, Any], source: str) -> dict[str, Any]:
    """Within a layer, `parallel.num_envs_per_worker` becomes `env.num_envs`."""
    parallel, env = layer.get("parallel", {}), layer.get("env", {})
    per_worker = parallel.get("num_envs_per_worker")
    if per_worker is None:
        return layer
    workers = parallel.get("num_workers")
    if not isinstance(workers, int) or not isinstance(per_worker, int):
        raise InputError(
            f"parallel.num_envs_per_worker: needs a number in parallel.num_workers ({source}), got {workers!r};"
            " or use env.num_envs"
        )
    total = workers * per_worker
    if env.get("num_envs", total) != total:
        raise InputError(
            f"parallel.num_envs_per_worker: {workers} workers x {per_worker} = {total} environments, but"
            f" env.num_envs is {env['num_envs']} ({source}); remove one"
        )
    kept = {key: value for key, value in parallel.items() if key != "num_envs_per_worker"}
    return layer | {"parallel": kept, "env": env | {"num_envs": total}}


def nearest(name: str, known: list[str], *, hint_only: bool = False) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if hint_only and not close:
        return ""
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _place_of(key: str, known: list[str]) -> str:
    """The section of a key that is in the wrong place, or the nearest of the known names."""
    for section, field in Settings.model_fields.items():
        if key in field.annotation.model_fields:  # type: ignore[union-attr]
            return f"; it belongs in the section '{section}'"
    return nearest(key, known)


def _explain(error: ValidationError) -> str:
    """The first problem as one line: key, value, and what was expected."""
    problem = error.errors()[0]
    location = [str(part) for part in problem["loc"]]
    section = location[0]
    known = Settings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    key = ".".join(location[:2])
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key{_place_of(location[1], list(known))}"
    expected = "; or ".join(
        dict.fromkeys(
            re.sub(r"^value error, (.*: )?expected", "expected", p["msg"][0].lower() + p["msg"][1:])
            for p in error.errors()
            if [str(x) for x in p["loc"][:2]] == location[:2]
        )
    )
    return f"{key}: got {shortened(repr(problem['input']))}; {expected}"
