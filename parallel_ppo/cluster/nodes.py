"""A node's place and its part of the run. Needs no torch, so a wrong number is reported at once.

S slices, L microbatches.
"""

import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from parallel_ppo.cluster.engines import rank_among
from parallel_ppo.exits import InputError
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import Sizes


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
    size, sizes = settings.cluster.nnodes, settings.sizes
    if size > sizes.num_slices:
        raise InputError(
            f"cluster.nnodes: {size} nodes for {sizes.num_slices} slices of {sizes.slice_envs} environments,"
            f" and each node needs one; use at most {sizes.num_slices} nodes, or more environments"
        )
    return Node(rank_among(size, node_rank, environment), size)


def short_host_name() -> str:
    return socket.gethostname().partition(".")[0][:40] or "localhost"


def boot_id() -> str:
    """The same for all nodes on one machine, containers and network namespaces included."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# --- its part of the run---------------------------------------------------------------------------------------


def own_slices(sizes: Sizes, node: Node) -> range:
    """Contiguous, in order, as even as possible."""
    return range(node.rank * sizes.num_slices // node.size, (node.rank + 1) * sizes.num_slices // node.size)


def own_microbatches(sizes: Sizes, node: Node, per_slice: int | None = None) -> range:
    """All, or those of its slices that have `per_slice` each."""
    slices, per_slice = own_slices(sizes, node), per_slice or len(sizes.microbatch_sizes)
    return range(slices.start * per_slice, slices.stop * per_slice)


def group_size(sizes: Sizes, size: int, per_slice: int | None = None) -> int:
    """The largest power of two at whose multiples all nodes' microbatches begin.

    The tree over microbatches can be cut there: each node sums its microbatches in groups of this size, and the tree
    goes on over the groups.
    """
    starts = [own_microbatches(sizes, Node(rank, size), per_slice).start for rank in range(1, size)]
    if not starts:
        return 1 << (len(own_microbatches(sizes, ALONE, per_slice)) - 1).bit_length()
    common = math.gcd(*starts)
    return common & -common


def groups(microbatches: range, size: int) -> list[range]:
    return [
        range(first, min(first + size, microbatches.stop))
        for first in range(microbatches.start, microbatches.stop, size)
    ]
