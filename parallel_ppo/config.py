"""YAML and flags -> frozen settings. All validation and all derived values live here.

Order of layers: defaults < file < flags. What changes a float is a learning setting (`learning_settings`): saved, compared
when nodes join, immutable on resume.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parallel_ppo.envs import names
from parallel_ppo.exits import InputError
from parallel_ppo.files import Damaged, read_regular

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
AtLeastZero = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EnvSettings(Section):
    id: str = "coinrun"
    num_envs: Annotated[int, Field(ge=1, le=65536)] = 32
    slice_envs: Positive | None = None
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "easy"
    num_levels: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    start_level: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    use_sequential_levels: bool = False
    use_backgrounds: bool = True
    center_agent: bool = True
    paint_vel_info: bool = False
    use_generated_assets: bool = False
    use_monochrome_assets: bool = False
    restrict_themes: bool = False
    kwargs: dict[str, Any] = {}
    wrappers: list[str | dict[str, dict[str, Any]]] = []


PROCGEN_OPTIONS = tuple(
    key
    for key in EnvSettings.model_fields
    if key not in ("id", "num_envs", "slice_envs", "kwargs", "wrappers")
)


class TrainingSettings(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    total_timesteps: Positive | None = None
    duration: PositiveFloat | None = None
    n_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    n_epochs: Annotated[int, Field(ge=1, le=1000)] = 4
    batch_size: Positive = 1024
    lane_samples: Positive | None = None
    policy: Literal["auto", "impala", "nature", "mlp"] = "auto"
    hidden_sizes: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=64)] = [64, 64]
    kernels: Literal["auto", "torch", "native"] = "auto"
    learning_rate: PositiveFloat = 5e-4
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    clip_range: PositiveFloat = 0.2
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    schedule_by: Literal["steps", "time"] = "steps"
    schedule_steps: Positive | None = None
    schedule_hours: PositiveFloat | None = None
    gamma: Fraction = 0.999
    gae_lambda: Fraction = 0.95
    entropy_coef: AtLeastZero = 0.01
    value_coef: AtLeastZero = 0.5
    clip_value_loss: bool = True
    max_grad_norm: PositiveFloat = 0.5
    adam_eps: PositiveFloat = 1e-5
    target_kl: PositiveFloat | None = None
    normalize_advantages: bool = True
    normalize_rewards: bool = True
    reward_clip: PositiveFloat = 10.0
    normalize_observations: bool = False
    observation_clip: PositiveFloat = 10.0


class ParallelSettings(Section):
    num_workers: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    num_envs_per_worker: Positive | None = None
    max_restarts: Annotated[int, Field(ge=0)] = 10
    hang_timeout: PositiveFloat | Literal["auto"] = "auto"


class HardwareSettings(Section):
    pinning: Literal["auto", "none"] | list[Annotated[int, Field(ge=0)]] = "auto"
    num_threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = 1
    lock_memory: bool = True
    huge_pages: bool = True


class LoggingSettings(Section):
    tensorboard: bool = True
    checkpoint_interval: PositiveFloat = 300.0
    checkpoint_iterations: Positive | None = None
    keep_checkpoints: Positive = 3


class EvaluationSettings(Section):
    """Episodes during training that are only looked at; never a learning setting."""

    interval: Positive | None = None
    num_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    deterministic: bool = False
    max_steps: Annotated[int, Field(ge=1, le=100_000_000)] = 100_000


class ClusterSettings(Section):
    nnodes: Annotated[int, Field(ge=1, le=4096)] = 1
    num_workers: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] | None = None
    distributed_backend: Literal["gloo"] = "gloo"
    reduction: Literal["tree", "gloo"] = "tree"
    master_addr: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    master_port: Annotated[int, Field(ge=1, le=65535)] = 29500
    interface: Annotated[str, Field(min_length=1)] | None = None
    timeout: Annotated[float, Field(ge=1, le=86400)] = 120.0
    join_timeout: Annotated[float, Field(ge=1, le=86400)] = 300.0


class Settings(Section):
    """The resolved configuration of a run."""

    env: EnvSettings = EnvSettings()
    training: TrainingSettings = TrainingSettings()
    parallel: ParallelSettings = ParallelSettings()
    hardware: HardwareSettings = HardwareSettings()
    logging: LoggingSettings = LoggingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    cluster: ClusterSettings = ClusterSettings()

    @cached_property
    def shape(self) -> Shape:
        return derive_shape(self)

    def changed(self, section: str, **values: Any) -> Settings:
        copy = self.model_copy(update={section: getattr(self, section).model_copy(update=values)})
        copy.__dict__.pop("shape", None)  # a copy takes cached values along, and the shape may change
        return copy


class Shape(NamedTuple):
    """What follows from the settings alone. T steps, E envs, S slices."""

    num_steps: int
    num_envs: int
    slice_envs: int
    num_slices: int
    num_epochs: int
    num_minibatches: int
    batch_size: int
    share: int  # samples of one slice in one minibatch
    lane_sizes: tuple[int, ...]  # of one slice's share
    steps_per_iteration: int

    @property
    def num_lanes(self) -> int:
        return self.num_slices * len(self.lane_sizes)


DEFAULT_SLICE = 8
MAX_LANES = 1 << 16
DEFAULT_LANE = 64
STOP_CONDITIONS = ("total_timesteps", "duration")


def derive_shape(settings: Settings) -> Shape:
    env, training = settings.env, settings.training
    slice_envs = env.slice_envs or max(
        n for n in range(1, min(DEFAULT_SLICE, env.num_envs) + 1) if env.num_envs % n == 0
    )
    num_slices, total = env.num_envs // slice_envs, env.num_envs * training.n_steps
    share = training.batch_size // num_slices
    lane = training.lane_samples or (share if training.policy == "mlp" else DEFAULT_LANE)
    count = min(-(-share // max(lane, 1)), MAX_LANES)  # more are refused by `_check_batch`
    lanes = tuple(share // count + (index < share % count) for index in range(count))
    return Shape(training.n_steps, env.num_envs, slice_envs, num_slices, training.n_epochs, total // training.batch_size,
                 training.batch_size, share, lanes, total)  # fmt: skip


def learning_settings(settings: Settings) -> dict[str, Any]:
    """Everything that changes a float, by dotted key; derived sizes stand for their automatic values."""
    values = {f"env.{key}": value for key, value in settings.env.model_dump().items()}
    values |= {
        f"training.{k}": v for k, v in settings.training.model_dump().items() if k not in STOP_CONDITIONS
    }
    values["env.slice_envs"] = settings.shape.slice_envs
    values["training.lane_samples"] = max(settings.shape.lane_sizes)
    values["hardware.num_threads"] = settings.hardware.num_threads
    return values


def changed_learning_setting(saved: Settings, given: Settings) -> str | None:
    """One line naming the first learning setting that differs, or None."""
    before, now = learning_settings(saved), learning_settings(given)
    for key, value in before.items():
        if now[key] != value:
            return f"{key}: is {value!r} in the saved run and cannot become {now[key]!r} on resume; start a new run for that"
    return None


# --- from layers to settings ---------------------------------------------------------------------------------------------


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
            merged.setdefault(section, {}).update(values)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise InputError(_explain(error)) from None
    return _check(settings)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 5e-4 as text; people mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)
MAX_CONFIG_BYTES = 100_000
MAX_DEPTH = 50


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, MAX_CONFIG_BYTES).decode("utf-8")
        if "&" in text and re.search(r"(^|[\s\[{,:-])[&*]\w", text):
            raise InputError(
                f"{path}: uses YAML anchors or aliases, which are not allowed here; write the values out"
            )
        if _depth(text) > MAX_DEPTH:
            raise InputError(
                f"{path}: nests more than {MAX_DEPTH} deep; expected sections of keys and values"
            )
        content = yaml.load(text, Loader=_Loader)
    except InputError:
        raise
    except Damaged as problem:
        if not path.exists():
            raise InputError(
                f"{path}: no such configuration file; see config/ for the shipped ones"
            ) from None
        raise InputError(f"{problem}; expected a configuration file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    except Exception as error:  # PyYAML answers odd input with almost any exception
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is not valid YAML ({detail})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected sections ({', '.join(Settings.model_fields)}), got a {type(content).__name__}"
        )
    return content


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
                f"; it belongs into the section '{where}'"
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
    """`cluster.num_workers` is another name, within its own layer, for `parallel.num_workers`: both are per node."""
    cluster, parallel = layer.get("cluster", {}), layer.get("parallel", {})
    workers = cluster.get("num_workers")
    if workers is None:
        return layer
    if parallel.get("num_workers", workers) != workers:
        raise InputError(
            f"cluster.num_workers: is {workers!r}, but parallel.num_workers is {parallel['num_workers']!r} ({source}); both are the workers of one node, give one of the two"
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
            f"parallel.num_envs_per_worker: needs a number in parallel.num_workers beside it ({source}), got {workers!r}; or give env.num_envs"
        )
    total = workers * per_worker
    if env.get("num_envs", total) != total:
        raise InputError(
            f"parallel.num_envs_per_worker: {workers} workers x {per_worker} = {total} environments, but env.num_envs is {env['num_envs']} ({source}); give one of the two"
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
            f"; it belongs into the section '{elsewhere}'" if elsewhere else nearest(location[1], list(known))
        )
        return f"{key}: unknown key{hint}"
    expected = "; or ".join(
        dict.fromkeys(
            p["msg"][0].lower() + p["msg"][1:]
            for p in error.errors()
            if [str(x) for x in p["loc"][:2]] == location[:2]
        )
    )
    shown = repr(problem["input"])
    return f"{key}: got {shown if len(shown) < 80 else shown[:77] + '...'}; {expected}"


def _check(settings: Settings) -> Settings:
    """What no single field can know."""
    settings = settings.changed("env", id=names.canonical(settings.env.id))
    env, training = settings.env, settings.training
    is_procgen = names.procgen_game(env.id) is not None
    for option in PROCGEN_OPTIONS:
        if not is_procgen and getattr(env, option) != EnvSettings.model_fields[option].default:
            raise InputError(
                f"env.{option}: is an option of Procgen and does nothing for {env.id}; remove it"
            )
    if is_procgen and (env.kwargs or env.wrappers):
        raise InputError(
            "env.kwargs and env.wrappers: are for Gymnasium environments; Procgen's options are keys of the section 'env'"
        )
    if is_procgen and training.policy == "mlp":
        raise InputError(
            "training.policy: 'mlp' reads vectors, and Procgen gives images; use impala or nature"
        )
    if env.slice_envs is not None and env.num_envs % env.slice_envs:
        raise InputError(
            f"env.slice_envs: {env.slice_envs} does not divide {env.num_envs} environments; nearest that does: {_nearest_divisor(env.num_envs, env.slice_envs)}"
        )
    _check_batch(settings)
    _check_plain(settings)
    return settings


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
        if training.lane_samples and settings.shape.share > MAX_LANES * training.lane_samples:
            raise InputError(
                f"training.lane_samples: {training.lane_samples} cuts a share of {settings.shape.share} samples into more than {MAX_LANES} lanes; use more"
            )
        return
    valid = [slices * share for share in _divisors(total // slices)]
    best = min(valid, key=lambda size: abs(size - training.batch_size))
    arithmetic = f"{env.num_envs} environments x {training.n_steps} steps = {total} samples"
    if total % training.batch_size:
        problem = f"{training.batch_size} does not divide {arithmetic} ({total} / {training.batch_size} = {total / training.batch_size:.2f})"
    else:
        problem = f"{training.batch_size} cannot be shared evenly by {slices} slices of {settings.shape.slice_envs} environments"
    raise InputError(f"training.batch_size: {problem}; nearest that works: {best}")


def _divisors(total: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return small + [total // n for n in small]


def _nearest_divisor(total: int, wanted: int) -> int:
    return min(_divisors(total), key=lambda n: (abs(n - wanted), n))


def to_yaml(settings: Settings) -> str:
    """YAML that loads again as the same settings."""
    return yaml.safe_dump(settings.model_dump(), sort_keys=False)
