"""What the loop asks of the nodes of a run, and the null object for a run on one node. `gloo.py` is the
real thing.

T steps, E envs, L microbatches, P parameters.
"""

import contextlib
from typing import NamedTuple, Protocol

import numpy as np

from parallel_ppo.cluster import nodes
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.memory.snapshots import Environments, Snapshot
from parallel_ppo.settings.schema import Sizes
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import Pool


class NodeReport(NamedTuple):
    """One node's iteration: seconds, and what must be known of all nodes."""

    name: str  # the cluster's to fill in, like all that lies between its meetings
    elapsed: float  # of the run, by this node's clock
    t_rollout: float
    t_learn: float
    t_wait: float
    t_transfer: float
    num_workers: int
    restarts: int
    exact: bool
    bytes_sent: int = 0

    @classmethod
    def of(cls, pool: Pool, elapsed: float, began: float, collected: float, learned: float) -> "NodeReport":
        times = elapsed, collected - began, learned - collected, 0.0, 0.0
        return cls("", *times, pool.num_workers, pool.restarts, pool.exact)


class Cluster(Protocol):
    node: Node
    names: list[str]
    rounds_alike: bool  # do all nodes compute the same bits from the same numbers?
    slices: range
    microbatches: range
    reduced_microbatches: (
        range  # what the workers sum up; none where microbatches are exchanged in several groups
    )

    def place_on_host(self) -> tuple[int, int]:
        """Which of the nodes on this machine this is, and how many there are."""

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        """A problem of one node that is raised in here becomes the problem of all."""

    def decide(self, value: str | None) -> str | None:
        """The first node's value."""

    def everyones(self, value: int) -> list[int]:
        """The values of all nodes, by rank."""

    def share_state(self, memory: Memory, snapshot: Snapshot) -> Snapshot:
        """The state of the node that restored the most steps, else that of the first node; its environments
        are put into the memory of their owners.
        """

    def gather_columns(self, memory: Memory, iteration: int) -> None:
        """The gathered fields of all slices, so that every node computes targets on the whole."""

    def sum_gradients(self, memory: Memory) -> None: ...

    def gather_microbatches(self, memory: Memory) -> None:
        """The owners' gradients and statistics of single microbatches, to everyone."""

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        """[own slices, K] -> [S, K]"""

    def gather_environments(self, environments: Environments) -> None:
        """Everyone's rows into the first node's memory."""

    def close_iteration(self, report: NodeReport) -> list[NodeReport]: ...

    def close(self) -> None: ...


class NoCluster:
    """One node: it owns everything and agrees with itself."""

    def __init__(self, sizes: Sizes) -> None:
        self.node, self.names = Node(), [f"0:{nodes.short_host_name()}"]
        self.rounds_alike = True
        self.slices, self.microbatches = range(sizes.num_slices), range(sizes.num_microbatches)
        self.reduced_microbatches = self.microbatches

    def place_on_host(self) -> tuple[int, int]:
        return 0, 1

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def decide(self, value: str | None) -> str | None:
        return value

    def everyones(self, value: int) -> list[int]:
        return [value]

    def share_state(self, memory: Memory, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def gather_columns(self, memory: Memory, iteration: int) -> None:
        pass

    def sum_gradients(self, memory: Memory) -> None:
        pass

    def gather_microbatches(self, memory: Memory) -> None:
        pass

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def gather_environments(self, environments: Environments) -> None:
        pass

    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        return [report._replace(name=self.names[0])]

    def close(self) -> None:
        pass
