"""YAML and flags -> settings that are valid together, or one line that names the key, what was given and
what would do.

Order of layers: defaults < file < flags.
"""

import difflib
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from parallel_ppo.exits import InputError
from parallel_ppo.settings import env_names
from parallel_ppo.settings.algorithms import ALGORITHM_KINDS
from parallel_ppo.settings.curiosity import ALGORITHMS as CURIOUS_ALGORITHMS
from parallel_ppo.settings.curiosity import curiosity_defaults
from parallel_ppo.settings.networks import network_kind, that_read
from parallel_ppo.settings.schema import (
    LEVEL_SAMPLING,
    MAX_LANES,
    PROCGEN_OPTIONS,
    EnvSettings,
    Settings,
    TrainingSettings,
)
from parallel_ppo.storage.files import Damaged, read_regular

MAX_SCORED_LEVELS = 100_000


def load_settings(
    *, file: Path | None, flags: dict[str, Any], base: dict[str, Any] | None = None
) -> Settings:
    """`flags` maps dotted keys to values. `base` is a layer below the file (a script's own defaults)."""
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
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise InputError(_explain(error)) from None
    return _check(settings)


def _fill_in_algorithm(merged: dict[str, dict[str, Any]]) -> None:
    """What the chosen algorithm says where nobody else does."""
    training, env = merged.setdefault("training", {}), merged.get("env", {})
    kind = ALGORITHM_KINDS.get(str(training.get("algorithm", "ppo")))
    if kind is None or not isinstance(training, dict) or not isinstance(env, dict):
        return  # told by the validation that follows
    for key, value in kind.defaults.items():
        training.setdefault(key, value)
    if kind.single_pass and "batch_size" not in training:
        num_envs = env.get("num_envs", EnvSettings.model_fields["num_envs"].default)
        n_steps = training.get("n_steps", TrainingSettings.model_fields["n_steps"].default)
        if type(num_envs) is int and type(n_steps) is int:
            training["batch_size"] = max(1, num_envs * n_steps)


def _fill_in_curiosity(merged: dict[str, dict[str, Any]]) -> None:
    """What the chosen curiosity says where nobody else does."""
    section = merged.setdefault("curiosity", {})
    for key, value in curiosity_defaults(str(section.get("kind")), section.get("combine")).items():
        section.setdefault(key, value)


def _merge(below: dict[str, Any], values: dict[str, Any]) -> None:
    """`kwargs.x` sets one argument of the environment and keeps the others."""
    for key, value in values.items():
        name, _, argument = str(key).partition(".")
        if name == "kwargs" and argument:
            below[name] = (below.get(name) or {}) | {argument: value}
        else:
            below[key] = value


class _Loader(yaml.SafeLoader):
    """YAML in which 5e-4 is a number (1.1 reads it as text), a key stands once, and an integer fits 64
    bits.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                first = lines[key.value]
                raise InputError(
                    f"{self.name}: the key {key.value[:80]!r} stands twice, in lines {first} and {line};"
                    " keep one"
                )
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        value = self.construct_yaml_int(node)
        if value.bit_length() > 64:
            raise InputError(f"{self.name}: {node.value[:20]}... is too large; expected a number below 2^63")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)
MAX_CONFIG_BYTES = 100_000
MAX_DEPTH = 50


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, MAX_CONFIG_BYTES).decode("utf-8")
    except Damaged as problem:
        if not path.exists():
            raise InputError(
                f"{path}: no such configuration file; see config/ for the shipped ones"
            ) from None
        raise InputError(f"{problem}; expected a configuration file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    content = parse_value(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected sections ({', '.join(Settings.model_fields)}), got a {type(content).__name__}"
        )
    return content


def parse_value(text: str, source: str) -> Any:
    """YAML from outside: what it says, or one line that begins with `source`."""
    if _depth(text) > MAX_DEPTH:
        raise InputError(f"{source}: nests more than {MAX_DEPTH} deep; expected sections of keys and values")
    try:
        if any(isinstance(token, (yaml.AnchorToken, yaml.AliasToken)) for token in yaml.scan(text, _Loader)):
            raise InputError(
                f"{source}: uses YAML anchors or aliases, which are not allowed here; write the values out"
            )
        loader = _Loader(text)
        loader.name = source
        return loader.get_single_data()
    except InputError:
        raise
    except Exception as error:  # PyYAML answers odd input with almost any exception
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{source}: is not valid YAML ({detail})") from None


def _depth(text: str) -> int:
    """Of brackets and of lists in one line, roughly. PyYAML takes seconds for a few thousand of them."""
    deepest, depth = max((len(run) // 2 for run in re.findall(r"(?:[-?:] +)+", text)), default=0), 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def nested(flat: dict[str, Any]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result


def check_sections(layer: dict[str, Any], source: str) -> None:
    for section, values in layer.items():
        if section not in Settings.model_fields:
            where = _section_of(str(section))
            hint = (
                f"; it belongs in the section '{where}'"
                if where
                else nearest(str(section), list(Settings.model_fields))
            )
            raise InputError(f"{source}: unknown section {repr(section)[:80]}{hint}")
        if values is not None and not isinstance(values, dict):
            raise InputError(
                f"{source}: the section '{section}' must hold keys and values, got {repr(values)[:80]}"
            )
    for section in [name for name, values in layer.items() if values is None]:
        layer[section] = {}


def _resolve_node_workers(layer: dict[str, Any], source: str) -> dict[str, Any]:
    """`cluster.num_workers` is another name, within its own layer, for `parallel.num_workers`: both are
    per node.
    """
    cluster, parallel = layer.get("cluster", {}), layer.get("parallel", {})
    workers = cluster.get("num_workers")
    if workers is None:
        return layer
    if parallel.get("num_workers", workers) != workers:
        raise InputError(
            f"cluster.num_workers: is {workers!r}, but parallel.num_workers is {parallel['num_workers']!r}"
            f" ({source}); both are the workers of one node, give one of the two"
        )
    kept = {key: value for key, value in cluster.items() if key != "num_workers"}
    return layer | {"cluster": kept, "parallel": parallel | {"num_workers": workers}}


def _resolve_envs_per_worker(layer: dict[str, Any], source: str) -> dict[str, Any]:
    """`num_envs_per_worker` is a convenience: within its own layer it becomes `env.num_envs`."""
    parallel, env = layer.get("parallel", {}), layer.get("env", {})
    per_worker = parallel.get("num_envs_per_worker")
    if per_worker is None:
        return layer
    workers = parallel.get("num_workers")
    if not isinstance(workers, int) or not isinstance(per_worker, int):
        raise InputError(
            f"parallel.num_envs_per_worker: needs a number in parallel.num_workers beside it ({source}), got"
            f" {workers!r}; or give env.num_envs"
        )
    total = workers * per_worker
    if env.get("num_envs", total) != total:
        raise InputError(
            f"parallel.num_envs_per_worker: {workers} workers x {per_worker} = {total} environments, but"
            f" env.num_envs is {env['num_envs']} ({source}); give one of the two"
        )
    kept = {key: value for key, value in parallel.items() if key != "num_envs_per_worker"}
    return layer | {"parallel": kept, "env": env | {"num_envs": total}}


def nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _section_of(key: str) -> str | None:
    for section, field in Settings.model_fields.items():
        if key in field.annotation.model_fields:  # type: ignore[union-attr]
            return section
    return None


def _explain(error: ValidationError) -> str:
    """The first problem as one line: key, what was given, what was expected."""
    problem = error.errors()[0]
    location = [str(part) for part in problem["loc"]]
    section = location[0]
    known = Settings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    key = ".".join(location[:2])
    if problem["type"] == "extra_forbidden":
        elsewhere = _section_of(location[1])
        hint = (
            f"; it belongs in the section '{elsewhere}'" if elsewhere else nearest(location[1], list(known))
        )
        return f"{key}: unknown key{hint}"
    expected = "; or ".join(
        dict.fromkeys(
            re.sub(r"^value error, .*: expected", "expected", p["msg"][0].lower() + p["msg"][1:])
            for p in error.errors()
            if [str(x) for x in p["loc"][:2]] == location[:2]
        )
    )
    shown = repr(problem["input"])
    return f"{key}: got {shown if len(shown) < 80 else shown[:77] + '...'}; {expected}"


def _check(settings: Settings) -> Settings:
    """What no single field can know."""
    settings = settings.changed("env", id=env_names.canonical(settings.env.id))
    env, training = settings.env, settings.training
    is_procgen = env_names.procgen_game(env.id) is not None
    for option in (*PROCGEN_OPTIONS, *LEVEL_SAMPLING):
        if not is_procgen and getattr(env, option) != EnvSettings.model_fields[option].default:
            raise InputError(
                f"env.{option}: is an option of Procgen and does nothing for {env.id}; remove it"
            )
    env_names.check_mode(env.id, env.distribution_mode)
    if env.distribution_mode == "exploration" and (env.num_levels or env.start_level):
        raise InputError(
            "env.num_levels and env.start_level: exploration is one level, which Procgen chooses; remove them"
        )
    if is_procgen and (env.kwargs or env.wrappers or env.fresh_objects is True):
        raise InputError(
            "env.kwargs, env.wrappers and env.fresh_objects: are for Gymnasium environments; Procgen's"
            " options are keys of the section 'env'"
        )
    if is_procgen and training.policy != "auto" and network_kind(training.policy).reads == "vectors":
        raise InputError(
            f"training.policy: {training.policy!r} reads vectors, and Procgen gives images; use"
            f" {that_read('images')}"
        )
    if env.slice_envs is not None and env.num_envs % env.slice_envs:
        raise InputError(
            f"env.slice_envs: {env.slice_envs} does not divide {env.num_envs} environments; nearest that"
            f" does: {_nearest_divisor(env.num_envs, env.slice_envs)}"
        )
    _check_levels(env)
    _check_algorithm(settings)
    _check_curiosity(settings)
    _check_batch(settings)
    _check_plain(settings)
    if settings.hardware.buffers == "file" and settings.hardware.buffer_directory is None:
        raise InputError(
            "hardware.buffers: 'file' needs a directory on a disk; give it as hardware.buffer_directory"
        )
    return settings


def _check_levels(env: EnvSettings) -> None:
    if env.level_sampler == "uniform":
        for option in LEVEL_SAMPLING[1:]:
            if getattr(env, option) != EnvSettings.model_fields[option].default:
                raise InputError(f"env.{option}: is for prioritized levels; set env.level_sampler to plr")
        return
    if not 0 < env.num_levels <= MAX_SCORED_LEVELS:
        raise InputError(
            f"env.level_sampler: plr keeps a score for each level, and env.num_levels is {env.num_levels}"
            f"{'' if env.num_levels else ' (all of them)'}; expected 1 to {MAX_SCORED_LEVELS}, such as"
            " --num-levels 200"
        )
    if env.use_sequential_levels:
        raise InputError("env.use_sequential_levels: leaves plr nothing to choose; remove one of the two")


def _check_algorithm(settings: Settings) -> None:
    training, kind = settings.training, ALGORITHM_KINDS[settings.training.algorithm]
    name, whole = training.algorithm, settings.env.num_envs * training.n_steps
    if training.lag and not kind.may_lag:
        able = ", ".join(other for other, each in ALGORITHM_KINDS.items() if each.may_lag)
        raise InputError(f"training.lag: {name} has none; remove it, or use one of {able}")
    if kind.single_pass and training.n_epochs != 1:
        raise InputError(
            f"training.n_epochs: {name} learns from each sample once; remove it, or use ppo or appo"
        )
    if kind.single_pass and training.batch_size != whole:
        raise InputError(
            f"training.batch_size: {name} takes one step for a whole batch of {whole} samples "
            f"({settings.env.num_envs} environments x {training.n_steps} steps); remove it"
        )
    if training.num_actors is not None and not kind.in_turn:
        raise InputError(f"training.num_actors: is for a3c, the algorithm is {name}; remove it")
    if training.num_actors is not None and settings.env.num_envs % training.num_actors:
        raise InputError(
            f"training.num_actors: {training.num_actors} actors cannot share {settings.env.num_envs}"
            " environments evenly, and each needs one; nearest that can:"
            f" {_nearest_divisor(settings.env.num_envs, training.num_actors)}"
        )
    if training.num_actors is not None and settings.env.slice_envs not in (None, settings.shape.slice_envs):
        raise InputError("env.slice_envs: an actor of a3c is a slice; set training.num_actors alone")
    coefficient = TrainingSettings.model_fields["augmentation_coef"].default
    if training.augmentation == "none" and training.augmentation_coef != coefficient:
        raise InputError(
            "training.augmentation_coef: nothing is augmented; set training.augmentation, or remove it"
        )
    if training.clip_rewards is not None and training.normalize_rewards:
        raise InputError(
            "training.clip_rewards: rewards are normalised, and then clipped by training.reward_clip; "
            "set training.normalize_rewards to false"
        )


def _check_curiosity(settings: Settings) -> None:
    training, kind = settings.training, settings.curiosity.kind
    if not settings.curiosity.is_curious:
        return
    if training.algorithm not in CURIOUS_ALGORITHMS:
        raise InputError(
            f"curiosity.kind: {kind} cannot be used with {training.algorithm}, which learns from samples of"
            f" older parameters; use {' or '.join(CURIOUS_ALGORITHMS)}, or none"
        )
    if training.lag:
        raise InputError(
            f"training.lag: is {training.lag}, and {kind} rewards samples with the parameters that are"
            " learned; remove it, or set curiosity.kind to none"
        )


def _check_plain(settings: Settings) -> None:
    """Settings travel to workers and into checkpoints as JSON; YAML can also say dates, bytes and sets."""
    try:
        size = len(json.dumps(settings.model_dump()))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "env.kwargs and env.wrappers: expected plain values (numbers, text, true/false, lists, mappings)"
        ) from None
    if size > MAX_CONFIG_BYTES:
        raise InputError(f"env.kwargs and env.wrappers: are larger than {MAX_CONFIG_BYTES} bytes")


def _check_batch(settings: Settings) -> None:
    training, env = settings.training, settings.env
    total, slices = env.num_envs * training.n_steps, settings.shape.num_slices
    if total % training.batch_size == 0 and training.batch_size % slices == 0:
        if training.lane_samples and settings.shape.slice_samples > MAX_LANES * training.lane_samples:
            raise InputError(
                f"training.lane_samples: {training.lane_samples} cuts a slice's"
                f" {settings.shape.slice_samples} samples of a minibatch into more than {MAX_LANES} lanes;"
                " use more"
            )
        return
    valid = [slices * share for share in _divisors(total // slices)]
    best = min(valid, key=lambda size: abs(size - training.batch_size))
    arithmetic = f"{env.num_envs} environments x {training.n_steps} steps = {total} samples"
    if total % training.batch_size:
        problem = (
            f"{training.batch_size} does not divide {arithmetic} ({total} / {training.batch_size} ="
            f" {total / training.batch_size:.2f})"
        )
    else:
        problem = (
            f"{training.batch_size} cannot be shared evenly by {slices} slices of {settings.shape.slice_envs}"
            " environments"
        )
    raise InputError(f"training.batch_size: {problem}; nearest that works: {best}")


def _divisors(total: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return small + [total // n for n in small]


def _nearest_divisor(total: int, wanted: int) -> int:
    return min(_divisors(total), key=lambda n: (abs(n - wanted), n))


def to_yaml(settings: Settings) -> str:
    """YAML that loads again as the same settings."""
    return yaml.safe_dump(settings.model_dump(), sort_keys=False)
