"""The table of networks: what each reads and what follows from choosing it. Needs no torch, so a misfit
is told at once.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple


class NetworkKind(NamedTuple):
    trunk: str  # module:Class of the part between observation and features
    reads: Literal["images", "vectors", "both"]
    initial: Literal["orthogonal", "fan_in", "own"]  # its weights are drawn so; own: by its constructor
    separate_value_trunk: bool = False
    smallest_image: int = 1  # pixels; below it the last layer has nothing to read
    has_width: bool = False  # `training.width` scales its channels
    default_microbatch: int | None = (
        64  # samples of a microbatch; None: all of a slice's samples in a minibatch
    )
    default_slice: int = 8  # environments at most; fewer where a forward pass costs little beside their steps


NETWORKS = {
    "impala": NetworkKind("parallel_ppo.policies.impala:Impala", "images", "fan_in", has_width=True),
    "impoola": NetworkKind("parallel_ppo.policies.impala:Impoola", "images", "fan_in", has_width=True),
    "nature": NetworkKind("parallel_ppo.policies.nature:Nature", "images", "orthogonal", smallest_image=36),
    "small_image": NetworkKind("parallel_ppo.policies.small_image:SmallImage", "images", "orthogonal"),
    "mlp": NetworkKind(
        "parallel_ppo.policies.mlp:Mlp",
        "vectors",
        "orthogonal",
        True,
        default_microbatch=None,
        default_slice=4,
    ),
}
LARGEST_SMALL_IMAGE = 32  # pixels a side
EXPECTED = f"expected auto, {', '.join(NETWORKS)}, or a network of your own as module:Class"


def automatic(images: Sequence[tuple[int, ...]]) -> str:
    """What `auto` means for an observation with these images, (height, width, channels); none: vectors."""
    if not images:
        return "mlp"
    is_small = all(max(shape[:2]) <= LARGEST_SMALL_IMAGE for shape in images)
    return "small_image" if is_small else "impala"


def network_kind(policy: str) -> NetworkKind:
    """Of a network of this table, or of a user's own."""
    return NetworkKind(policy, "both", "own") if is_own(policy) else NETWORKS[policy]


def is_own(policy: str) -> bool:
    return ":" in policy


def checked_policy(policy: str) -> str:
    if policy not in ("auto", *NETWORKS) and not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", policy):
        raise ValueError(f"policy: {EXPECTED}")
    return policy


def that_read(what: str) -> str:
    """For messages: `impala, nature or small_image`."""
    return listed([name for name, kind in NETWORKS.items() if kind.reads == what], "or")


def listed(names: Sequence[str], last: str) -> str:
    """For messages: `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
