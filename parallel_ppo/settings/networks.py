"""The table of networks: what each reads and what follows from choosing it. Needs no torch, so a misfit is told at once."""

from typing import Literal, NamedTuple


class NetworkKind(NamedTuple):
    trunk: str  # module:Class of the part between observation and features
    reads: Literal["images", "vectors"]
    initial: Literal["orthogonal", "fan_in"]  # how the trunk's weights are drawn
    separate_value_trunk: bool = False
    smallest_image: int = 1  # pixels; below it the last layer has nothing to read
    default_lane: int | None = 64  # samples of a lane; None: all of a slice's samples in a minibatch


NETWORKS = {
    "impala": NetworkKind("parallel_ppo.policies.impala:Impala", "images", "fan_in"),
    "nature": NetworkKind("parallel_ppo.policies.nature:Nature", "images", "orthogonal", smallest_image=36),
    "mlp": NetworkKind("parallel_ppo.policies.mlp:Mlp", "vectors", "orthogonal", True, default_lane=None),
}
AUTOMATIC = {"images": "impala", "vectors": "mlp"}


def that_read(what: str) -> str:
    """For messages: `impala or nature`."""
    return " or ".join(name for name, kind in NETWORKS.items() if kind.reads == what)
