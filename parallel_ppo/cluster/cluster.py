"""The cluster as the loop sees it: here for a run on one node, in `gloo.py` for several.

T steps, E envs, L microbatches, P parameters.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.cluster.nodes import ALONE, Node, own_microbatches, own_slices, short_host_name
from parallel_ppo.memory.snapshots import Environments, Snapshot
from parallel_ppo.settings.sizes import Sizes
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import Pool


class NodeReport(NamedTuple):
    """One node's iteration, in seconds, and the facts that all nodes must know."""

    name: str  # this and the three fields of the exchange are filled in by the cluster
    elapsed: float  # of the run, by this node's clock
    t_rollout: float
    t_learn: float
    t_wait: float
    t_transfer: float
    num_workers: int
    restarts: int
    exact: bool
    bytes_sent: int = 0
    messages_sent: int = 0

    @classmethod
    def of(cls, pool: Pool, elapsed: float, began: float, collected: float, learned: float) -> "NodeReport":
        times = elapsed, collected - began, learned - collected, 0.0, 0.0
        return cls("", *times, pool.num_workers, pool.restarts, pool.exact)


class Cluster:
    """One node: it owns everything and agrees with itself."""

    def __init__(self, sizes: Sizes, node: Node = ALONE) -> None:
        self.node, self.names = node, [f"{node.rank}:{short_host_name()}"]
        self.same_bits = True  # all nodes compute the same bits from the same numbers
        self.slices, self.microbatches = own_slices(sizes, node), own_microbatches(sizes, node)
        # The workers add these up. Empty if the nodes exchange several groups of microbatches.
        self.reduced_microbatches = self.microbatches

    def place_on_host(self) -> tuple[int, int]:
        """This node's index among those on this machine, and their number."""
        return 0, 1

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        """A problem of one node that is raised in here becomes the problem of all."""
        return contextlib.nullcontext()

    def decide(self, value: str | None) -> str | None:
        """The first node's value."""
        return self.values_of_all(value)[0]

    def values_of_all(self, value: Any) -> list[Any]:
        return [value]

    def share_state(self, memory: Memory, snapshot: Snapshot) -> Snapshot:
        """The state of the node that restored the most steps, else that of the first node. Its environments
        are put into the memory of their owners.
        """
        return snapshot

    def gather_columns(self, memory: Memory, iteration: int) -> None:
        """The gathered fields of all slices, so that every node computes targets on the whole."""

    def sum_gradients(self, memory: Memory) -> None:
        """The sum over the microbatches of all nodes, and their loss statistics."""

    def gather_microbatches(self, memory: Memory) -> None:
        """The owners' gradients and statistics of single microbatches, to everyone."""

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        """[own slices, K] -> [S, K]"""
        return rows

    def gather_environments(self, environments: Environments) -> None:
        """The environments of all nodes, into the first node's memory."""

    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        return [report._replace(name=self.names[0])]

    def close(self) -> None:
        pass
