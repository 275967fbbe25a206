"""Who a node is and which part of the run it owns. Needs no torch, so a wrong number is reported at once.

S slices, L lanes.
"""

import math
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from parallel_ppo.cluster.engines import place
from parallel_ppo.exits import InputError
from parallel_ppo.settings.schema import Settings, Shape


class Node(NamedTuple):
    """A place among the nodes of a run."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """The first node's clock and files are those of the run."""
        return self.rank == 0


ALONE = Node()


def identify(settings: Settings, node_rank: int | None, environment: Mapping[str, str]) -> Node:
    size, shape = settings.cluster.nnodes, settings.shape
    if size > shape.num_slices:
        raise InputError(
            f"cluster.nnodes: {size} nodes for {shape.num_slices} slices of {shape.slice_envs} environments,"
            f" and each node needs one; use at most {shape.num_slices} nodes, or more environments"
        )
    return Node(place(environment, size, node_rank), size)


def short_host_name() -> str:
    return socket.gethostname().partition(".")[0][:40] or "localhost"


def boot_id() -> str:
    """The same for all nodes on one machine, containers and network namespaces included."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"{socket.gethostname()}-{os.uname().version}"


# --- who owns what ------------------------------------------------------------------------------------------


def own_slices(shape: Shape, node: Node) -> range:
    """Contiguous, in order, as even as possible."""
    return range(node.rank * shape.num_slices // node.size, (node.rank + 1) * shape.num_slices // node.size)


def own_lanes(shape: Shape, node: Node, per_slice: int | None = None) -> range:
    """All, or those of its slices that have `per_slice` each."""
    slices, per_slice = own_slices(shape, node), per_slice or len(shape.lane_sizes)
    return range(slices.start * per_slice, slices.stop * per_slice)


def group_size(shape: Shape, size: int, per_slice: int | None = None) -> int:
    """The largest power of two at whose multiples all nodes' lanes begin.

    The tree over lanes can be cut there: each node sums its lanes in groups of this size, and the tree
    goes on over the groups.
    """
    starts = [own_lanes(shape, Node(rank, size), per_slice).start for rank in range(1, size)]
    if not starts:
        return 1 << (len(own_lanes(shape, ALONE, per_slice)) - 1).bit_length()
    common = math.gcd(*starts)
    return common & -common


def groups(lanes: range, size: int) -> list[range]:
    return [range(first, min(first + size, lanes.stop)) for first in range(lanes.start, lanes.stop, size)]
