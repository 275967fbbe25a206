"""What settings must fulfil together: each rule is one line for whoever broke it."""

import json
import math

from parallel_ppo.exits import InputError
from parallel_ppo.settings.algorithms import ALGORITHM_KINDS
from parallel_ppo.settings.curiosity import ALGORITHMS as CURIOUS_ALGORITHMS
from parallel_ppo.settings.env_families import check_options, family_of
from parallel_ppo.settings.procgen import SAMPLER_OPTIONS
from parallel_ppo.settings.schema import (
    MAX_MICROBATCHES,
    EnvSettings,
    Settings,
    TrainingSettings,
)
from parallel_ppo.settings.yaml_files import MAX_CONFIG_BYTES


def checked(settings: Settings) -> Settings:
    """Rules for several fields together."""
    family = family_of(settings.env.id)
    settings = settings.changed("env", id=family.canonical(settings.env.id))
    env = settings.env
    check_options(env)
    family.check(settings)
    if env.slice_envs is not None and env.num_envs % env.slice_envs:
        raise InputError(
            f"env.slice_envs: {env.slice_envs} does not divide {env.num_envs} environments; nearest that"
            f" does: {_nearest_divisor(env.num_envs, env.slice_envs)}"
        )
    _check_level_sampler(env)
    _check_algorithm(settings)
    _check_curiosity(settings)
    _check_batch(settings)
    _check_plain(settings)
    if settings.hardware.buffers == "file" and settings.hardware.buffer_directory is None:
        raise InputError(
            "hardware.buffers: 'file' needs a directory on a disk; give it as hardware.buffer_directory"
        )
    return settings


def _check_level_sampler(env: EnvSettings) -> None:
    if env.level_sampler == "uniform":
        for option in SAMPLER_OPTIONS:
            if getattr(env, option) != EnvSettings.model_fields[option].default:
                raise InputError(f"env.{option}: is for prioritized levels; set env.level_sampler to plr")


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
    if training.num_actors is not None and settings.env.slice_envs not in (None, settings.sizes.slice_envs):
        raise InputError("env.slice_envs: an actor of a3c is a slice; set training.num_actors alone")
    coefficient = TrainingSettings.model_fields["augmentation_coef"].default
    if training.augmentation == "none" and training.augmentation_coef != coefficient:
        raise InputError(
            "training.augmentation_coef: nothing is augmented; set training.augmentation, or remove it"
        )
    if training.learning_rate_schedule == "adaptive":
        _check_adaptive(training, kind.single_pass)
    if training.reward_gamma is not None and not training.normalize_rewards:
        raise InputError(
            "training.reward_gamma: has no effect unless training.normalize_rewards is true; remove it"
        )
    if training.clip_rewards is not None and training.normalize_rewards:
        raise InputError(
            "training.clip_rewards: rewards are normalised, and then clipped by training.reward_clip; "
            "set training.normalize_rewards to false"
        )


def _check_adaptive(training: TrainingSettings, single_pass: bool) -> None:
    if single_pass:
        raise InputError(
            f"training.learning_rate_schedule: {training.algorithm} takes one step for each batch, so there is"
            " no KL to adapt to; use constant or linear, or ppo or appo"
        )
    if training.learning_rate_warmup is not None:
        raise InputError("training.learning_rate_warmup: the adaptive schedule has none; remove it")
    if not training.adaptive_min <= training.learning_rate <= training.adaptive_max:
        raise InputError(
            f"training.learning_rate: {training.learning_rate} is not between training.adaptive_min"
            f" ({training.adaptive_min}) and training.adaptive_max ({training.adaptive_max})"
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
    total, slices = env.num_envs * training.n_steps, settings.sizes.num_slices
    if total % training.batch_size == 0 and training.batch_size % slices == 0:
        if training.lane_samples and settings.sizes.slice_samples > MAX_MICROBATCHES * training.lane_samples:
            raise InputError(
                f"training.lane_samples: {training.lane_samples} cuts a slice's"
                f" {settings.sizes.slice_samples} samples of a minibatch into more than {MAX_MICROBATCHES} microbatches;"
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
            f"{training.batch_size} cannot be shared evenly by {slices} slices of {settings.sizes.slice_envs}"
            " environments"
        )
    raise InputError(f"training.batch_size: {problem}; nearest that works: {best}")


def _divisors(total: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return small + [total // n for n in small]


def _nearest_divisor(total: int, wanted: int) -> int:
    return min(_divisors(total), key=lambda n: (abs(n - wanted), n))
