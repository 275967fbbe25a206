"""Several nodes as one: every node runs the same loop over its own slices, and they exchange what must be
the same everywhere (`exchange.py`) at the same places.

T steps, E envs, L microbatches, P parameters, N nodes.
"""

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors import numpy as safetensors

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.cluster import nodes, rendezvous
from parallel_ppo.cluster.cluster import Cluster, NodeReport
from parallel_ppo.cluster.exchange import Exchange
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.cluster.rendezvous import Meeting
from parallel_ppo.exits import ClusterError
from parallel_ppo.machine.resources import Machine
from parallel_ppo.machine.signals import Signals
from parallel_ppo.memory.snapshots import Environments, Snapshot
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import Sizes
from parallel_ppo.workers.gradient_parts import GradientPart, gradient_parts
from parallel_ppo.workers.memory import Memory


class TreeSum:
    """Sums one part of the gradient over all nodes, in the order of one node.

    Each node sums its microbatches in groups, then finishes the tree for its range of parameters, the chunk. As
    many bytes travel as in a ring all-reduce.
    """

    def __init__(self, sizes: Sizes, node: Node, per_slice: int) -> None:
        size = nodes.group_size(sizes, node.size, per_slice)
        groups = [
            nodes.groups(nodes.own_microbatches(sizes, Node(rank, node.size), per_slice), size)
            for rank in range(node.size)
        ]
        self.own_groups, self.num_groups = groups[node.rank], [len(theirs) for theirs in groups]
        self.chunk = 0

    def _make_buffers(self, num_parameters: int) -> None:
        """Once: fresh pages for every minibatch would cost as much as moving the bytes."""
        num_nodes = len(self.num_groups)
        self.chunk = -(-num_parameters // num_nodes)
        self.sent = np.zeros((num_nodes, len(self.own_groups), self.chunk), np.float32)
        self.received = np.zeros((sum(self.num_groups), self.chunk), np.float32)
        self.finished = np.zeros((num_nodes, self.chunk), np.float32)  # once for each receiver
        self.whole = np.zeros(num_nodes * self.chunk, np.float32)

    def add_up(self, exchange: Exchange, total: np.ndarray, part: GradientPart, is_summed: bool) -> None:
        """`total` holds the sum over this node's microbatches if `is_summed`, and receives that of all nodes."""
        if not self.chunk:
            self._make_buffers(total.size)
        for index, group in enumerate(self.own_groups):
            own = total if is_summed else tree_sum(list(part.microbatches[group.start : group.stop])).numpy()
            for rank, buffer in enumerate(self.sent[:, index]):
                theirs = own[rank * self.chunk : (rank + 1) * self.chunk]
                buffer[: theirs.size] = theirs
        sizes = [number * self.chunk for number in self.num_groups]
        sent_sizes = [len(self.own_groups) * self.chunk] * len(self.num_groups)
        exchange.all_to_all(self.received.reshape(-1), self.sent.reshape(-1), sizes, sent_sizes)
        self.finished[:] = tree_sum(list(torch.from_numpy(self.received)))
        exchange.all_to_all(self.whole, self.finished.reshape(-1))
        total[:] = self.whole[: total.size]


class GlooCluster(Cluster):
    def __init__(self, sizes: Sizes, node: Node, meeting: Meeting, *, exact_order: bool = True) -> None:
        """Without `exact_order` gloo adds the gradients: faster, but the last bits depend on the nodes."""
        super().__init__(sizes, node)
        self.sizes, self.meeting, self.exact_order = sizes, meeting, exact_order
        self.names, self.same_bits = meeting.names, meeting.same_bits
        everyone = [Node(rank, node.size) for rank in range(node.size)]
        self.all_slices = [nodes.own_slices(sizes, other) for other in everyone]
        self.all_microbatches = [nodes.own_microbatches(sizes, other) for other in everyone]
        per_slice = [len(sizes.microbatch_sizes)]
        if sizes.predictor_microbatches:
            per_slice.append(sizes.predictor_microbatches)
        self.sums = [TreeSum(sizes, node, number) for number in per_slice]
        if exact_order and max(max(part_sum.num_groups) for part_sum in self.sums) > 1:
            self.reduced_microbatches = self.microbatches[:0]
        payload = (
            max(map(len, self.all_microbatches)) * len(Statistics._fields) * np.dtype(np.float64).itemsize
        )
        self.exchange = Exchange(node, meeting.names, meeting.store, payload)

    def place_on_host(self) -> tuple[int, int]:
        return self.meeting.place_on_host(self.node.rank)

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        return self.exchange.announcing()

    # --- the loop's questions -------------------------------------------------------------------------------

    def values_of_all(self, value: Any) -> list[Any]:
        return self.exchange.gather_messages("value", value)

    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        exchange = self.exchange
        own = report._replace(
            name=self.names[self.node.rank],
            t_wait=exchange.wait,
            t_transfer=exchange.transfer,
            bytes_sent=exchange.bytes_sent,
            messages_sent=exchange.messages_sent,
        )
        exchange.wait = exchange.transfer = 0.0
        exchange.bytes_sent = exchange.messages_sent = 0
        return [NodeReport(*values) for values in exchange.gather_messages("close", own)]

    # --- the iteration --------------------------------------------------------------------------------------

    def gather_columns(self, memory: Memory, iteration: int) -> None:
        """With proof that all nodes have the same parameters."""
        self.exchange.iteration = iteration
        if not self.same_bits:
            self.exchange.gather_messages("parameters")
            self.exchange.broadcast(memory.parameters, 0)
        self._check_equal("columns", memory.parameters)
        columns = [self._columns(slices) for slices in self.all_slices]
        with self.exchange.transferring():
            self._gather_along(memory.rollout(iteration).gathered_columns(), columns, axis=1)

    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        self.exchange.gather_messages("slices")
        whole = np.empty((self.sizes.num_slices, *rows.shape[1:]), rows.dtype)
        whole[self.slices.start : self.slices.stop] = rows
        with self.exchange.transferring():
            self._gather_along([whole], [slice(part.start, part.stop) for part in self.all_slices], axis=0)
        return whole

    def _columns(self, slices: range) -> slice:
        return slice(slices.start * self.sizes.slice_envs, slices.stop * self.sizes.slice_envs)

    def _gather_along(self, arrays: list[np.ndarray], parts: list[slice], axis: int) -> None:
        """Completes arrays of which each node has its own part."""
        pieces = [[array[(slice(None),) * axis + (part,)] for array in arrays] for part in parts]
        sizes = [sum(piece.nbytes for piece in node) for node in pieces]
        own = np.concatenate(
            [np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces[self.node.rank]]
        )
        received = np.empty(sum(sizes), np.uint8)
        self.exchange.all_to_all(received, np.tile(own, self.node.size), sizes, [own.nbytes] * self.node.size)
        position = 0
        for piece in (piece for node in pieces for piece in node):
            data = received[position : position + piece.nbytes]
            piece[...] = data.view(piece.dtype).reshape(piece.shape)
            position += piece.nbytes

    def _check_equal(self, place: str, parameters: np.ndarray) -> None:
        own = hashlib.blake2b(parameters.tobytes(), digest_size=16).hexdigest()
        digests = self.exchange.gather_messages(place, own)
        for name, digest in zip(self.names, digests, strict=True):
            if digest != digests[0]:
                raise ClusterError(
                    f"node {name} has different parameters from node {self.names[0]} at iteration "
                    f"{self.exchange.iteration}; nodes with different CPUs or libraries cannot train together"
                )

    # --- gradients ------------------------------------------------------------------------------------------

    def sum_gradients(self, memory: Memory) -> None:
        """The statistics travel as the payload of the messages."""
        own = memory.microbatch_statistics[self.microbatches.start : self.microbatches.stop]
        self.exchange.gather_messages("gradients", payload=own)
        for microbatches, row in zip(self.all_microbatches, self.exchange.payloads, strict=True):
            data = row[: len(microbatches) * own.itemsize * own.shape[1]]
            memory.microbatch_statistics[microbatches.start : microbatches.stop] = data.view(
                own.dtype
            ).reshape(-1, own.shape[1])
        with self.exchange.transferring():
            if self.exact_order:
                for part, part_sum in zip(gradient_parts(memory, self.sizes), self.sums, strict=True):
                    total = memory.gradient[part.first : part.end]
                    part_sum.add_up(self.exchange, total, part, bool(self.reduced_microbatches))
            else:
                self.exchange.add(memory.gradient)

    def gather_microbatches(self, memory: Memory) -> None:
        self.exchange.gather_messages("microbatches")
        own = [slice(microbatches.start, microbatches.stop) for microbatches in self.all_microbatches]
        with self.exchange.transferring():
            self._gather_along([memory.microbatch_gradient, memory.microbatch_statistics], own, axis=0)

    # --- states ---------------------------------------------------------------------------------------------

    def share_state(self, memory: Memory, snapshot: Snapshot) -> Snapshot:
        stamps = memory.state_stamp[memory.slot(snapshot.counters["iteration"])]
        data = np.frombuffer(bytearray(safetensors.save(snapshot.arrays)), np.uint8)
        own = [snapshot.counters, data.size, bool(stamps[0] >= 0)]
        offers = self.exchange.gather_messages("state", own)
        steps = [counters["env_steps"] if restored else -1 for counters, _, restored in offers]
        source = steps.index(max(steps))
        counters, length, restored = offers[source]
        if source != self.node.rank:
            data = np.empty(length, np.uint8)
        self.exchange.broadcast(data, source)
        environments = Environments.at(memory, counters["iteration"])
        memory.state_stamp.fill(-1)
        if restored:
            self.exchange.gather_messages("deal")
            packs = [
                safetensors.save(environments.pack(self._columns(slices)))
                if source == self.node.rank
                else b""
                for slices in self.all_slices
            ]
            mine = self._exchange_packs(packs)[source]
            environments.unpack(safetensors.load(mine), self._columns(self.slices))
            stamps = memory.state_stamp[memory.slot(counters["iteration"])]
            stamps[self.slices.start : self.slices.stop] = counters["iteration"]
        shared = Snapshot(counters, safetensors.load(data.tobytes()), environments)
        self._check_equal("shared", shared.arrays["parameters"])
        return shared

    def gather_environments(self, environments: Environments) -> None:
        own = safetensors.save(environments.pack(self._columns(self.slices)))
        self.exchange.gather_messages("environments")
        with self.exchange.transferring():
            received = self._exchange_packs([own] + [b""] * (self.node.size - 1))
        if self.node.leads:
            for slices, theirs in zip(self.all_slices, received, strict=True):
                environments.unpack(safetensors.load(theirs), self._columns(slices))

    def _exchange_packs(self, packs: list[bytes]) -> list[bytes]:
        """Node i's pack j becomes node j's pack i; packs may differ in length."""
        sizes = np.array([len(pack) for pack in packs], np.int64)
        received_sizes = np.empty_like(sizes)
        self.exchange.all_to_all(received_sizes, sizes)
        received = np.empty(received_sizes.sum(), np.uint8)
        sent = np.frombuffer(bytearray(b"".join(packs)), np.uint8)
        self.exchange.all_to_all(received, sent, received_sizes.tolist(), sizes.tolist())
        return [part.tobytes() for part in np.split(received, np.cumsum(received_sizes)[:-1])]

    def close(self) -> None:
        self.exchange.close()


def join(
    settings: Settings,
    node: Node,
    machine: Machine,
    signals: Signals,
    note: Callable[[str], None],
    *,
    portable: bool,
) -> GlooCluster:
    """Connected to all other nodes; those of a portable run may have other CPUs and libraries."""
    with signals.interruptible():
        meeting = rendezvous.meet(settings, node, machine, portable=portable)
    rendezvous.connect(meeting, node, settings.cluster)
    own = meeting.nodes[node.rank]
    note(
        f"node {own.name} of {node.size}, over {meeting.interface} ({own.address}); nodes:"
        f" {', '.join(meeting.names)}"
    )
    if not meeting.same_bits:
        note("the nodes differ, so the learned parameters depend on them (bit_exact: false)")
    elif not portable and len({other.cpu_model for other in meeting.nodes}) > 1:
        note("the nodes have different CPUs; the run stops if their results differ")
    exact_order = settings.cluster.reduction == "tree"
    if not exact_order:
        note("cluster.reduction is gloo, so the learned parameters depend on the number of nodes")
    return GlooCluster(settings.sizes, node, meeting, exact_order=exact_order)
