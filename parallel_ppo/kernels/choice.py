"""Selects kernels for this CPU and this network. Needs no torch, so that a plan can be made before anything starts."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.build import VARIANTS, BuildError, load
from parallel_ppo.printable import listed
from parallel_ppo.settings.schema import Settings

UNITS = 16  # of an MLP's hidden layers: a multiple of these
MAX_FACTOR = 4  # of `training.width`
MAX_LAYERS = 15  # MAX_POINTERS of microbatch.h
CLIPPED_LOSS = ("ppo", "appo")


class Images(NamedTuple):
    """The images that a network's kernels support."""

    sides: Sequence[int]
    words: str
    is_square: bool = True
    most_channels: int = 12
    usual_side: int = 64  # in benchmarks and tests: Procgen's


NETWORKS = {
    "impala": Images(range(64, 97), "64x64 to 96x96"),
    "impoola": Images(range(64, 97), "64x64 to 96x96"),
    "nature": Images((64, 84), "64x64 and 84x84"),
    "small_image": Images(range(1, 33), "1x1 to 32x32", is_square=False, most_channels=64, usual_side=7),
}

NEEDED_FEATURES = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"},
    "avx2": {"avx2", "fma"},
}


@functools.cache
def cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def choose_variant(wanted: str | None = None) -> str:
    """The best instruction set of this CPU, or the wanted one (or PARALLEL_PPO_KERNEL); ValueError says
    why not.
    """
    wanted = wanted or os.environ.get("PARALLEL_PPO_KERNEL") or "auto"
    if wanted not in (*VARIANTS, "auto"):
        raise ValueError(f"unknown kernel variant {wanted!r}: choose from auto, {', '.join(VARIANTS)}")
    for variant in VARIANTS if wanted == "auto" else [wanted]:
        missing = NEEDED_FEATURES[variant] - cpu_features()
        if not missing:
            return variant
    raise ValueError(f"this CPU lacks {', '.join(sorted(missing))}")


def unsuitable(
    policy: str, shape: Sequence[int], hidden_sizes: Sequence[int] = (), factor: float = 1
) -> str | None:
    """Why the kernels do not know this network on observations of this shape, or None."""
    if policy == "mlp":
        fits = hidden_sizes and not any(size % UNITS for size in hidden_sizes)
        return (
            None if fits else f"hidden sizes are {list(hidden_sizes)}, the kernels know multiples of {UNITS}"
        )
    if policy not in NETWORKS:
        return f"the network is {policy}, the kernels know {listed([*NETWORKS, 'mlp'], 'and')}"
    height, width, channels = shape
    known = NETWORKS[policy]
    if height not in known.sides or width not in known.sides or (known.is_square and height != width):
        return f"images are {height}x{width}, the kernels of {policy} know {known.words}"
    if not 1 <= channels <= known.most_channels:
        return f"{channels} image channels, the kernels know 1 to {known.most_channels}"
    if factor not in range(1, MAX_FACTOR + 1):
        return f"the width is {factor:g}, the kernels know whole numbers up to {MAX_FACTOR}"
    return None


def unusable(
    policy: str, shape: Sequence[int], hidden_sizes: Sequence[int] = (), factor: float = 1
) -> str | None:
    """Why the kernels cannot be used for this network here, or None. Compiles them if need be."""
    reason = unsuitable(policy, shape, hidden_sizes, factor)
    if reason is None:
        try:
            load(choose_variant())
        except (ValueError, BuildError) as error:
            reason = str(error)
    return reason


def computes_whole_microbatches(settings: Settings, spec: EnvSpec) -> bool:
    """Whether C computes a microbatch's gradient in one call; otherwise `Worker.differentiate` does, with the same bits."""
    training = settings.training
    return (
        training.policy == "mlp"
        and training.kernels == "native"
        and training.algorithm in CLIPPED_LOSS
        and spec.action.kind in ("categorical", "gaussian")
        and not spec.masks_actions
        and spec.observation_dtype == "float32"
        and training.augmentation == "none"
        and not settings.curiosity.is_curious
        and not settings.recurrence.is_recurrent
        and len(training.hidden_sizes) <= MAX_LAYERS
    )
