"""Rules for several settings together; each is one line of error."""

import json
import math

from parallel_ppo.exits import InputError
from parallel_ppo.settings.env_families import canonical, check_env
from parallel_ppo.settings.kinds import ALGORITHM_KINDS, CURIOUS_ALGORITHMS
from parallel_ppo.settings.schema import Settings, TrainingSettings
from parallel_ppo.settings.sizes import MAX_MICROBATCHES
from parallel_ppo.settings.yaml_files import MAX_CONFIG_BYTES


def checked(settings: Settings, *, has_env: bool = True) -> Settings:
    """The same settings with the full name of the environment, if they are valid together. Without `has_env` the
    environment need not be installed.
    """
    if has_env:
        settings = settings.changed("env", id=canonical(settings.env.id))
    check_env(settings)
    _check_slices(settings)
    _check_algorithm(settings)
    _check_curiosity(settings)
    _check_batch(settings)
    _check_recurrence(settings)
    _check_plain(settings)
    if settings.evaluation.chooses_best:
        _require(settings.evaluation.interval, "evaluation.chooses_best: needs evaluation.interval")
    if settings.hardware.buffers == "file":
        _require(settings.hardware.buffer_directory, "hardware.buffers: file needs hardware.buffer_directory")
    return settings


def _require(holds: object, message: str) -> None:
    if not holds:
        raise InputError(message)


def _check_slices(settings: Settings) -> None:
    env, actors = settings.env, settings.training.num_actors
    for key, parts in (("env.slice_envs", env.slice_envs), ("training.num_actors", actors)):
        if parts is not None and env.num_envs % parts:
            best = min(_divisors(env.num_envs), key=lambda n: (abs(n - parts), n))
            raise InputError(f"{key}: {parts} does not divide {env.num_envs} environments; nearest: {best}")
    if actors is not None and env.slice_envs not in (None, settings.sizes.slice_envs):
        raise InputError("env.slice_envs: an actor of a3c is a slice; set training.num_actors alone")


def _check_algorithm(settings: Settings) -> None:
    training, kind = settings.training, ALGORITHM_KINDS[settings.training.algorithm]
    name, whole = training.algorithm, settings.env.num_envs * training.n_steps
    able = ", ".join(other for other, each in ALGORITHM_KINDS.items() if each.may_lag)
    _require(kind.may_lag or not training.lag, f"training.lag: {name} has none; remove it, or use {able}")
    if kind.single_pass:
        _require(
            training.n_epochs == 1,
            f"training.n_epochs: {name} learns from each sample once; remove it, or use ppo or appo",
        )
        _require(
            training.batch_size == whole,
            f"training.batch_size: {name} takes one step for a batch of all {whole} samples; remove it",
        )
    _require(
        kind.in_turn or training.num_actors is None,
        f"training.num_actors: is for a3c, the algorithm is {name}; remove it",
    )
    coefficient = TrainingSettings.model_fields["augmentation_coef"].default
    _require(
        training.augmentation != "none" or training.augmentation_coef == coefficient,
        "training.augmentation_coef: has no effect without training.augmentation; remove it",
    )
    _require(
        training.normalize_rewards or training.reward_gamma is None,
        "training.reward_gamma: has no effect unless training.normalize_rewards is true; remove it",
    )
    _require(
        training.clip_rewards is None or not training.normalize_rewards,
        "training.clip_rewards: limits raw rewards; set training.normalize_rewards to false, or use"
        " training.reward_clip",
    )
    if training.learning_rate_schedule == "adaptive":
        _check_adaptive(training, kind.single_pass)


def _check_adaptive(training: TrainingSettings, single_pass: bool) -> None:
    _require(
        not single_pass,
        f"training.learning_rate_schedule: {training.algorithm} takes one step for each batch, so there is"
        " no KL to adapt to; use constant or linear, or ppo or appo",
    )
    _require(
        training.learning_rate_warmup is None,
        "training.learning_rate_warmup: cannot be combined with the adaptive schedule; remove it",
    )
    _require(
        training.adaptive_min <= training.learning_rate <= training.adaptive_max,
        f"training.learning_rate: {training.learning_rate} is not between training.adaptive_min"
        f" ({training.adaptive_min}) and training.adaptive_max ({training.adaptive_max})",
    )


def _check_curiosity(settings: Settings) -> None:
    training, kind = settings.training, settings.curiosity.kind
    if not settings.curiosity.is_curious:
        return
    _require(
        training.algorithm in CURIOUS_ALGORITHMS,
        f"curiosity.kind: {kind} cannot be used with {training.algorithm}, which learns from samples of older"
        f" parameters; use {' or '.join(CURIOUS_ALGORITHMS)}, or none",
    )
    _require(
        not training.lag,
        f"training.lag: {kind} needs samples of the current parameters; remove the lag, or set curiosity.kind"
        " to none",
    )


def _check_recurrence(settings: Settings) -> None:
    recurrence, sizes = settings.recurrence, settings.sizes
    if not recurrence.is_recurrent:
        return
    length, steps = sizes.sequence_length, sizes.num_steps
    if steps % length:
        best = min(_divisors(steps), key=lambda n: (abs(n - length), n))
        raise InputError(
            f"recurrence.sequence_length: {length} does not divide {steps} steps; nearest: {best}"
        )
    _require(
        sizes.slice_samples % length == 0,
        f"training.batch_size: {sizes.batch_size} gives each of {sizes.num_slices} slices {sizes.slice_samples}"
        f" samples, which are no whole sequences of {length} steps; use a multiple of"
        f" {sizes.num_slices * length}, or a shorter recurrence.sequence_length",
    )
    lane = settings.training.lane_samples
    _require(
        lane is None or lane >= length,
        f"training.lane_samples: {lane} cannot hold a sequence of {length} steps; use at least {length}",
    )


def _check_plain(settings: Settings) -> None:
    """Settings become JSON for workers and checkpoints; YAML also has dates, bytes and sets."""
    try:
        size = len(json.dumps(settings.model_dump()))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "env.kwargs and env.wrappers: expected plain values (numbers, text, true/false, lists, mappings)"
        ) from None
    _require(size <= MAX_CONFIG_BYTES, f"env.kwargs: settings are larger than {MAX_CONFIG_BYTES} bytes")


def _check_batch(settings: Settings) -> None:
    training, env, sizes = settings.training, settings.env, settings.sizes
    total, slices, batch = sizes.steps_per_iteration, sizes.num_slices, training.batch_size
    if total % batch:
        problem = (
            f"does not divide {env.num_envs} environments x {training.n_steps} steps = {total} samples"
            f" ({total} / {batch} = {total / batch:.2f})"
        )
    elif batch % slices:
        problem = f"cannot be shared evenly by {slices} slices of {sizes.slice_envs} environments"
    else:
        _require(
            sizes.slice_samples <= MAX_MICROBATCHES * (training.lane_samples or math.inf),
            f"training.lane_samples: {training.lane_samples} gives more than {MAX_MICROBATCHES} microbatches;"
            " use more",
        )
        return
    best = min((slices * share for share in _divisors(total // slices)), key=lambda size: abs(size - batch))
    raise InputError(f"training.batch_size: {batch} {problem}; nearest that works: {best}")


def _divisors(total: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return small + [total // n for n in small]
