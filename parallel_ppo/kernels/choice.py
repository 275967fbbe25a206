"""Which kernels fit this CPU and this network. Needs no torch, so that it can be decided before anything
starts.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from parallel_ppo.kernels.build import VARIANTS, BuildError, load
from parallel_ppo.settings.networks import listed

MAX_CHANNELS = 12
UNITS = 16  # of an MLP's hidden layers: a multiple of these


class Kernels(NamedTuple):
    """Of one network on square images of one size."""

    prefix: str  # of the names in the library
    num_flat: int  # numbers after the last convolution
    num_features: int


KERNELS = {
    ("impala", 64): Kernels("impala", 2048, 256),
    ("impoola", 64): Kernels("impoola", 32, 256),
    ("nature", 64): Kernels("nature64", 1024, 512),
    ("nature", 84): Kernels("nature84", 3136, 512),
}
NETWORKS = tuple(dict.fromkeys(network for network, _ in KERNELS))

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


def unsuitable(policy: str, shape: Sequence[int], hidden_sizes: Sequence[int] = ()) -> str | None:
    """Why the kernels do not know this network on observations of this shape, or None."""
    if policy == "mlp":
        fits = hidden_sizes and not any(size % UNITS for size in hidden_sizes)
        return (
            None if fits else f"hidden sizes are {list(hidden_sizes)}, the kernels know multiples of {UNITS}"
        )
    if policy not in NETWORKS:
        return f"the network is {policy}, the kernels know {listed([*NETWORKS, 'mlp'], 'and')}"
    height, width, channels = shape
    if height != width or (policy, height) not in KERNELS:
        known = " and ".join(f"{side}x{side}" for network, side in KERNELS if network == policy)
        return f"images are {height}x{width}, the kernels of {policy} know {known}"
    if not 1 <= channels <= MAX_CHANNELS:
        return f"{channels} image channels, the kernels know 1 to {MAX_CHANNELS}"
    return None


def unusable(policy: str, shape: Sequence[int], hidden_sizes: Sequence[int] = ()) -> str | None:
    """Why the kernels cannot be used for this network here, or None. Compiles them if need be."""
    reason = unsuitable(policy, shape, hidden_sizes)
    if reason is None:
        try:
            load(choose_variant())
        except (ValueError, BuildError) as error:
            reason = str(error)
    return reason
