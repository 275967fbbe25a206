"""Many nodes as one: what has to be the same everywhere is exchanged here; and the null object for a run on one node.

Every node runs the same loop over its own slices and meets the others at the same places in the same order (`exchange.py`).
T steps, E envs, L lanes, P parameters.
"""

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors import numpy as safetensors

from parallel_ppo.algorithms import ppo
from parallel_ppo.cluster import nodes, rendezvous
from parallel_ppo.cluster.exchange import Exchange
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.cluster.rendezvous import Meeting
from parallel_ppo.exits import ClusterError
from parallel_ppo.machine.signals import Signals
from parallel_ppo.settings.schema import Shape
from parallel_ppo.training.planning import Plan
from parallel_ppo.training.state import Counters, Snapshot, TrainingState
from parallel_ppo.workers.memory import NUM_STATISTICS, Memory
from parallel_ppo.workers.pool import Pool

COLUMNS = ("reward", "value", "episode_start", "truncated", "final_value", "level_seed")
PLAIN = ("carry_observation", "carry_start", "state_length")  # and state_bytes, of which only a part is used


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
    slices: range
    lanes: range
    reduced_lanes: range  # what the workers sum up; none where lanes are exchanged in several groups

    def place_on_host(self) -> tuple[int, int]:
        """Which of the nodes on this machine this is, and how many there are."""

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        """A problem of one node that is raised in here becomes the problem of all."""

    def decide(self, value: str | None) -> str | None:
        """What the first node says."""

    def share_state(self, state: TrainingState) -> None: ...

    def gather_columns(self, state: TrainingState) -> None: ...

    def sum_gradients(self, memory: Memory) -> None: ...

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        """[own slices, K] -> [S, K]"""

    def gather_environments(self, snapshot: Snapshot) -> None: ...

    def close_iteration(self, report: NodeReport) -> list[NodeReport]: ...

    def close(self) -> None: ...


class NoCluster:
    """One node: it owns everything and agrees with itself."""

    def __init__(self, shape: Shape) -> None:
        self.node, self.names = Node(), [f"0:{nodes.short_host_name()}"]
        self.slices, self.lanes = range(shape.num_slices), range(shape.num_lanes)
        self.reduced_lanes = self.lanes

    def place_on_host(self) -> tuple[int, int]:
        return 0, 1

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def decide(self, value: str | None) -> str | None:
        return value

    def share_state(self, state: TrainingState) -> None:
        pass

    def gather_columns(self, state: TrainingState) -> None:
        pass

    def sum_gradients(self, memory: Memory) -> None:
        pass

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def gather_environments(self, snapshot: Snapshot) -> None:
        pass

    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        return [report._replace(name=self.names[0])]

    def close(self) -> None:
        pass


def _in_step(method: Callable) -> Callable:
    """A signal may not tear a node out between the messages of one meeting; it is raised after the last of them."""

    def wrapped(self: "GlooCluster", *arguments: Any) -> Any:
        with self.signals.deferred():
            return method(self, *arguments)

    return wrapped


class Buffers(NamedTuple):
    """Made once: fresh pages for every minibatch would cost as much as moving the bytes."""

    chunk: int  # parameters whose sum one node finishes
    sums: np.ndarray  # [node, own group, chunk] to send
    parts: np.ndarray  # [all groups, chunk] received
    range_sum: np.ndarray  # [node, chunk] the finished sum, once for each receiver
    whole: np.ndarray  # [node * chunk] everyone's finished sum


class GlooCluster:
    def __init__(
        self, shape: Shape, node: Node, meeting: Meeting, signals: Signals, *, exact_order: bool = True
    ) -> None:
        """Without `exact_order` gloo adds the gradients: faster, but the last bits then depend on the number of nodes."""
        self.exact_order = exact_order
        self.shape, self.node, self.meeting, self.signals = shape, node, meeting, signals
        self.names = meeting.names
        self.slices, self.lanes = nodes.own_slices(shape, node), nodes.own_lanes(shape, node)
        everyone = [Node(rank, node.size) for rank in range(node.size)]
        self.all_slices = [nodes.own_slices(shape, other) for other in everyone]
        self.all_lanes = [nodes.own_lanes(shape, other) for other in everyone]
        size = nodes.group_size(shape, node.size)
        self.groups = nodes.groups(self.lanes, size)
        self.num_groups = [len(nodes.groups(lanes, size)) for lanes in self.all_lanes]
        whole = not exact_order or max(self.num_groups) == 1
        self.reduced_lanes = self.lanes if whole else self.lanes[:0]
        payload = max(map(len, self.all_lanes)) * NUM_STATISTICS * np.dtype(np.float64).itemsize
        self.exchange = Exchange(node, meeting, signals, payload)
        self.buffers: Buffers | None = None

    def place_on_host(self) -> tuple[int, int]:
        return self.meeting.place_on_host(self.node.rank)

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        return self.exchange.announcing()

    # --- the loop's questions ---------------------------------------------------------------------------------------------

    @_in_step
    def decide(self, value: str | None) -> str | None:
        return self.exchange.meet("decide", value)[0]

    @_in_step
    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        exchange = self.exchange
        own = report._replace(
            name=self.names[self.node.rank],
            t_wait=exchange.wait,
            t_transfer=exchange.transfer,
            bytes_sent=exchange.bytes_sent,
        )
        exchange.wait = exchange.transfer = 0.0
        exchange.bytes_sent = 0
        return [NodeReport(*values) for values in self.exchange.meet("close", own)]

    # --- the iteration ----------------------------------------------------------------------------------------------------

    @_in_step
    def gather_columns(self, state: TrainingState) -> None:
        """The scalar columns of all slices, so that every node computes advantages on the whole; and proof that all are one."""
        memory, self.exchange.iteration = state.memory, state.counters.iteration
        self._same_parameters(self.exchange.meet("columns", _digest(memory.parameters)))
        with self.exchange.transferring():
            self._gather_along(
                [getattr(memory, name) for name in COLUMNS],
                [self._columns(slices) for slices in self.all_slices],
                axis=1,
            )

    @_in_step
    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        self.exchange.meet("slices")
        whole = np.empty((self.shape.num_slices, *rows.shape[1:]), rows.dtype)
        whole[self.slices.start : self.slices.stop] = rows
        with self.exchange.transferring():
            self._gather_along([whole], [slice(part.start, part.stop) for part in self.all_slices], axis=0)
        return whole

    def _columns(self, slices: range) -> slice:
        return slice(slices.start * self.shape.slice_envs, slices.stop * self.shape.slice_envs)

    def _gather_along(self, arrays: list[np.ndarray], parts: list[slice], axis: int) -> None:
        """Completes arrays of which each node has its own part."""
        pieces = [[array[(slice(None),) * axis + (part,)] for array in arrays] for part in parts]
        sizes = [sum(piece.nbytes for piece in node) for node in pieces]
        own = np.concatenate([np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces[self.node.rank]])  # fmt: skip
        received = np.empty(sum(sizes), np.uint8)
        self.exchange.move(received, np.tile(own, self.node.size), sizes, [own.nbytes] * self.node.size)
        position = 0
        for piece in (piece for node in pieces for piece in node):
            data = received[position : position + piece.nbytes]
            piece[...] = data.view(piece.dtype).reshape(piece.shape)
            position += piece.nbytes

    def _same_parameters(self, digests: list[str]) -> None:
        for name, digest in zip(self.names, digests, strict=True):
            if digest != digests[0]:
                raise ClusterError(
                    f"node {name} has other parameters than node {self.names[0]} at iteration {self.exchange.iteration}; nodes with different CPUs or libraries cannot train together"
                )

    # --- gradients --------------------------------------------------------------------------------------------------------

    @_in_step
    def sum_gradients(self, memory: Memory) -> None:
        """Lanes' gradients of all nodes, and their loss statistics, which come with the meeting."""
        own = memory.lane_statistics[self.lanes.start : self.lanes.stop]
        self.exchange.meet("gradients", payload=own)
        for lanes, row in zip(self.all_lanes, self.exchange.payloads, strict=True):
            data = row[: len(lanes) * own.itemsize * own.shape[1]]
            memory.lane_statistics[lanes.start : lanes.stop] = data.view(own.dtype).reshape(-1, own.shape[1])
        with self.exchange.transferring():
            if self.exact_order:
                self._finish_tree(memory)
            else:
                self.exchange.add(memory.gradient)

    def _finish_tree(self, memory: Memory) -> None:
        """Summed in the one tree; each node finishes the tree for its range of parameters.

        As many bytes travel as in a ring all-reduce, but the order of additions is that of one node.
        """
        buffers = self._buffers(memory)
        self._fill_group_sums(memory, buffers.sums)
        sizes = [number * buffers.chunk for number in self.num_groups]
        sent_sizes = [len(self.groups) * buffers.chunk] * self.node.size
        self.exchange.move(buffers.parts.reshape(-1), buffers.sums.reshape(-1), sizes, sent_sizes)
        buffers.range_sum[:] = ppo.tree_sum(list(torch.from_numpy(buffers.parts)))
        self.exchange.move(buffers.whole, buffers.range_sum.reshape(-1))
        memory.gradient[:] = buffers.whole[: memory.gradient.size]

    def _fill_group_sums(self, memory: Memory, sums: np.ndarray) -> None:
        """[node, own group, chunk of parameters]: what each node needs to finish its range."""
        lanes, chunk = memory.tensor("lane_gradient"), sums.shape[2]
        for index, group in enumerate(self.groups):
            total = memory.gradient
            if not self.reduced_lanes:
                total = ppo.tree_sum(list(lanes[group.start : group.stop])).numpy()
            for rank in range(self.node.size):
                part = total[rank * chunk : (rank + 1) * chunk]
                sums[rank, index, : part.size] = part

    def _buffers(self, memory: Memory) -> "Buffers":
        if self.buffers is None:
            size, chunk = self.node.size, -(-memory.gradient.size // self.node.size)
            self.buffers = Buffers(
                chunk, np.zeros((size, len(self.groups), chunk), np.float32), np.zeros((sum(self.num_groups), chunk), np.float32),
                np.zeros((size, chunk), np.float32), np.zeros(size * chunk, np.float32),
            )  # fmt: skip
        return self.buffers

    # --- states -----------------------------------------------------------------------------------------------------------

    @_in_step
    def share_state(self, state: TrainingState) -> None:
        """The first node's state becomes everyone's, and its environments are dealt to their owners."""
        counters, length, restored = self.exchange.meet("state", self._state_size(state))[0]
        snapshot = state.snapshot()
        data = np.frombuffer(bytearray(safetensors.save(snapshot.arrays)), np.uint8) if self.node.leads else np.empty(length, np.uint8)  # fmt: skip
        self.exchange.broadcast(data)
        state.rewind(Snapshot(counters, safetensors.load(data.tobytes()), {}))
        state.counters = Counters(**counters)
        if restored:
            self._deal_environments(state)
        self._same_parameters(self.exchange.meet("shared", _digest(state.memory.parameters)))

    def _state_size(self, state: TrainingState) -> Any:
        snapshot = state.snapshot()
        restored = bool(state.memory.state_stamp[state.counters.iteration % 2, 0] >= 0)
        return (
            [snapshot.counters, len(safetensors.save(snapshot.arrays)), restored] if self.node.leads else None
        )

    def _deal_environments(self, state: TrainingState) -> None:
        environments, iteration = state.snapshot().environments, state.counters.iteration
        packs = [_pack(environments, self._columns(slices)) if self.node.leads else b"" for slices in self.all_slices]  # fmt: skip
        lengths = np.array([len(pack) for pack in packs], np.int64)
        self.exchange.meet("deal")
        self.exchange.broadcast(lengths)
        mine = np.empty(lengths[self.node.rank], np.uint8)
        sent = np.frombuffer(bytearray(b"".join(packs)), np.uint8)
        received_sizes = [mine.size if rank == 0 else 0 for rank in range(self.node.size)]
        self.exchange.move(mine, sent, received_sizes, [len(pack) for pack in packs])
        _unpack(environments, self._columns(self.slices), mine.tobytes())
        state.memory.state_stamp[iteration % 2, self.slices.start : self.slices.stop] = iteration

    @_in_step
    def gather_environments(self, snapshot: Snapshot) -> None:
        """Everyone's environments into the first node's memory, which its snapshot refers to."""
        environments = snapshot.environments
        own = np.frombuffer(bytearray(_pack(environments, self._columns(self.slices))), np.uint8)
        lengths = self.exchange.meet("environments", own.size)
        received_sizes = lengths if self.node.leads else [0] * self.node.size
        received = np.empty(sum(received_sizes), np.uint8)
        with self.exchange.transferring():
            self.exchange.move(received, own, received_sizes, [own.size if rank == 0 else 0 for rank in range(self.node.size)])  # fmt: skip
        ends = np.cumsum(received_sizes)
        for slices, end, length in zip(self.all_slices, ends, received_sizes, strict=True):
            if length:
                _unpack(environments, self._columns(slices), received[end - length : end].tobytes())

    def close(self) -> None:
        self.exchange.close()


def _digest(parameters: np.ndarray) -> str:
    return hashlib.blake2b(parameters.tobytes(), digest_size=16).hexdigest()


def _pack(environments: dict[str, np.ndarray], columns: slice) -> bytes:
    """Some environments as one run of bytes: plain arrays, nothing that is executed."""
    own = {name: np.ascontiguousarray(environments[name][columns]) for name in PLAIN}
    rows = zip(environments["state_bytes"][columns], own["state_length"], strict=True)
    return safetensors.save(own | {"state_bytes": np.concatenate([row[:length] for row, length in rows])})


def _unpack(environments: dict[str, np.ndarray], columns: slice, data: bytes) -> None:
    arrays = safetensors.load(data)
    for name in PLAIN:
        environments[name][columns] = arrays[name]
    ends = np.cumsum(arrays["state_length"])
    states = environments["state_bytes"][columns]
    for row, end, length in zip(states, ends, arrays["state_length"], strict=True):
        row[:length] = arrays["state_bytes"][end - length : end]


def join(plan: Plan, signals: Signals, say: Callable[[str], None]) -> Cluster:
    """The cluster of a plan: alone, or connected to all its other nodes."""
    settings, node = plan.settings, plan.node
    if node.size == 1:
        return NoCluster(settings.shape)
    with signals.interruptible():
        meeting = rendezvous.meet(plan)
    rendezvous.connect(meeting, node, settings.cluster)
    first = meeting.hellos[node.rank]
    say(
        f"node {first.name} of {node.size}, over {meeting.interface} ({first.address}); nodes: {', '.join(meeting.names)}"
    )
    if len({hello.cpu_model for hello in meeting.hellos}) > 1:
        say("the nodes have different CPUs: the run may stop because their results differ in the last bits")
    exact_order = settings.cluster.reduction == "tree"
    if not exact_order:
        say("cluster.reduction is gloo: what is learned depends on the number of nodes, in the last bits")
    return GlooCluster(settings.shape, node, meeting, signals, exact_order=exact_order)
