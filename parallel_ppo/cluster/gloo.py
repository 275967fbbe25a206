"""Many nodes as one: what has to be the same everywhere is exchanged here.

Every node runs the same loop over its own slices and meets the others at the same places in the same
order (`exchange.py`).
T steps, E envs, L microbatches, P parameters.
"""

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import numpy as safetensors

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.cluster import nodes, rendezvous
from parallel_ppo.cluster.exchange import Exchange
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.cluster.protocol import NodeReport
from parallel_ppo.cluster.rendezvous import Meeting
from parallel_ppo.exits import ClusterError
from parallel_ppo.machine.resources import Machine
from parallel_ppo.machine.signals import Signals
from parallel_ppo.memory.snapshots import Environments, Snapshot
from parallel_ppo.settings.schema import Settings, Sizes
from parallel_ppo.workers.gradient_parts import GradientPart, gradient_parts
from parallel_ppo.workers.memory import Memory


def _in_step(method: Callable) -> Callable:
    """A signal may not tear a node out between the messages of one meeting; it is raised after the last
    of them.
    """

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


class Tree(NamedTuple):
    """How the microbatches of all nodes are summed, for one part of the gradient."""

    groups: list[range]  # of this node's microbatches
    num_groups: list[int]  # of every node

    @staticmethod
    def of(sizes: Sizes, node: Node, per_slice: int) -> "Tree":
        size = nodes.group_size(sizes, node.size, per_slice)
        everyone = [
            nodes.own_microbatches(sizes, Node(rank, node.size), per_slice) for rank in range(node.size)
        ]
        groups = [nodes.groups(microbatches, size) for microbatches in everyone]
        return Tree(groups[node.rank], [len(theirs) for theirs in groups])


class GlooCluster:
    def __init__(
        self, sizes: Sizes, node: Node, meeting: Meeting, signals: Signals, *, exact_order: bool = True
    ) -> None:
        """Without `exact_order` gloo adds the gradients: faster, but the last bits then depend on the
        number of nodes.
        """
        self.exact_order = exact_order
        self.sizes, self.node, self.meeting, self.signals = sizes, node, meeting, signals
        self.names, self.rounds_alike = meeting.names, meeting.rounds_alike
        self.slices, self.microbatches = nodes.own_slices(sizes, node), nodes.own_microbatches(sizes, node)
        everyone = [Node(rank, node.size) for rank in range(node.size)]
        self.all_slices = [nodes.own_slices(sizes, other) for other in everyone]
        self.all_microbatches = [nodes.own_microbatches(sizes, other) for other in everyone]
        per_slice = [
            len(sizes.microbatch_sizes),
            *([sizes.predictor_microbatches] if sizes.predictor_microbatches else []),
        ]
        self.trees = [Tree.of(sizes, node, number) for number in per_slice]
        whole = not exact_order or max(max(tree.num_groups) for tree in self.trees) == 1
        self.reduced_microbatches = self.microbatches if whole else self.microbatches[:0]
        payload = (
            max(map(len, self.all_microbatches)) * len(Statistics._fields) * np.dtype(np.float64).itemsize
        )
        self.exchange = Exchange(node, meeting, signals, payload)
        self.buffers: dict[int, Buffers] = {}  # of each part of the gradient, by where it begins

    def place_on_host(self) -> tuple[int, int]:
        return self.meeting.place_on_host(self.node.rank)

    def announcing(self) -> contextlib.AbstractContextManager[None]:
        return self.exchange.announcing()

    # --- the loop's questions -------------------------------------------------------------------------------

    @_in_step
    def decide(self, value: str | None) -> str | None:
        return self.exchange.meet("decide", value)[0]

    @_in_step
    def everyones(self, value: int) -> list[int]:
        return self.exchange.meet("value", value)

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

    # --- the iteration --------------------------------------------------------------------------------------

    @_in_step
    def gather_columns(self, memory: Memory, iteration: int) -> None:
        """With proof that all nodes have the same parameters."""
        self.exchange.iteration = iteration
        if not self.rounds_alike:
            self.exchange.meet("parameters")
            self.exchange.broadcast(memory.parameters, 0)
        self._same_parameters(self.exchange.meet("columns", _digest(memory.parameters)))
        columns = [self._columns(slices) for slices in self.all_slices]
        with self.exchange.transferring():
            self._gather_along(memory.rollout(iteration).gathered_columns(), columns, axis=1)

    @_in_step
    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        self.exchange.meet("slices")
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
                    f"node {name} has different parameters from node {self.names[0]} at iteration "
                    f"{self.exchange.iteration}; nodes with different CPUs or libraries cannot train together"
                )

    # --- gradients ------------------------------------------------------------------------------------------

    @_in_step
    def sum_gradients(self, memory: Memory) -> None:
        """Microbatches' gradients of all nodes, and their loss statistics, which come with the meeting."""
        own = memory.microbatch_statistics[self.microbatches.start : self.microbatches.stop]
        self.exchange.meet("gradients", payload=own)
        for microbatches, row in zip(self.all_microbatches, self.exchange.payloads, strict=True):
            data = row[: len(microbatches) * own.itemsize * own.shape[1]]
            memory.microbatch_statistics[microbatches.start : microbatches.stop] = data.view(
                own.dtype
            ).reshape(-1, own.shape[1])
        with self.exchange.transferring():
            if self.exact_order:
                for part, tree in zip(gradient_parts(memory, self.sizes), self.trees, strict=True):
                    self._finish_tree(memory, part, tree)
            else:
                self.exchange.add(memory.gradient)

    @_in_step
    def gather_microbatches(self, memory: Memory) -> None:
        self.exchange.meet("microbatches")
        own = [slice(microbatches.start, microbatches.stop) for microbatches in self.all_microbatches]
        with self.exchange.transferring():
            self._gather_along([memory.microbatch_gradient, memory.microbatch_statistics], own, axis=0)

    def _finish_tree(self, memory: Memory, part: GradientPart, tree: Tree) -> None:
        """Summed in the one tree; each node finishes the tree for its range of parameters.

        As many bytes travel as in a ring all-reduce, but the order of additions is that of one node.
        """
        buffers = self._buffers(part, tree)
        total = memory.gradient[part.first : part.end]
        self._fill_group_sums(total, part, tree, buffers.sums)
        sizes = [number * buffers.chunk for number in tree.num_groups]
        sent_sizes = [len(tree.groups) * buffers.chunk] * self.node.size
        self.exchange.move(buffers.parts.reshape(-1), buffers.sums.reshape(-1), sizes, sent_sizes)
        buffers.range_sum[:] = tree_sum(list(torch.from_numpy(buffers.parts)))
        self.exchange.move(buffers.whole, buffers.range_sum.reshape(-1))
        total[:] = buffers.whole[: total.size]

    def _fill_group_sums(self, total: np.ndarray, part: GradientPart, tree: Tree, sums: np.ndarray) -> None:
        """[node, own group, chunk of parameters]: what each node needs to finish its range. `total` is what
        the workers have summed.
        """
        chunk = sums.shape[2]
        for index, group in enumerate(tree.groups):
            if not self.reduced_microbatches:
                total = tree_sum(list(part.microbatches[group.start : group.stop])).numpy()
            for rank in range(self.node.size):
                theirs = total[rank * chunk : (rank + 1) * chunk]
                sums[rank, index, : theirs.size] = theirs

    def _buffers(self, part: GradientPart, tree: Tree) -> "Buffers":
        if part.first not in self.buffers:
            size, chunk = self.node.size, -(-part.microbatches.shape[1] // self.node.size)
            self.buffers[part.first] = Buffers(
                chunk, np.zeros((size, len(tree.groups), chunk), np.float32),
                np.zeros((sum(tree.num_groups), chunk), np.float32),
                np.zeros((size, chunk), np.float32), np.zeros(size * chunk, np.float32),
            )  # fmt: skip
        return self.buffers[part.first]

    # --- states ---------------------------------------------------------------------------------------------

    @_in_step
    def share_state(self, memory: Memory, snapshot: Snapshot) -> Snapshot:
        stamps = memory.state_stamp[memory.slot(snapshot.counters["iteration"])]
        data = np.frombuffer(bytearray(safetensors.save(snapshot.arrays)), np.uint8)
        own = [snapshot.counters, data.size, bool(stamps[0] >= 0)]
        offers = self.exchange.meet("state", own)
        steps = [counters["env_steps"] if restored else -1 for counters, _, restored in offers]
        source = steps.index(max(steps))
        counters, length, restored = offers[source]
        if source != self.node.rank:
            data = np.empty(length, np.uint8)
        self.exchange.broadcast(data, source)
        environments = Environments.at(memory, counters["iteration"])
        memory.state_stamp.fill(-1)
        if restored:
            self._deal(environments, source)
            stamps = memory.state_stamp[memory.slot(counters["iteration"])]
            stamps[self.slices.start : self.slices.stop] = counters["iteration"]
        shared = Snapshot(counters, safetensors.load(data.tobytes()), environments)
        self._same_parameters(self.exchange.meet("shared", _digest(shared.arrays["parameters"])))
        return shared

    def _deal(self, environments: Environments, source: int) -> None:
        """The saved environments of one node go to their owners."""
        packs = [
            safetensors.save(environments.pack(self._columns(slices))) if self.node.rank == source else b""
            for slices in self.all_slices
        ]
        lengths = np.array([len(pack) for pack in packs], np.int64)
        self.exchange.meet("deal")
        self.exchange.broadcast(lengths, source)
        mine = np.empty(lengths[self.node.rank], np.uint8)
        sent = np.frombuffer(bytearray(b"".join(packs)), np.uint8)
        received_sizes = [mine.size if rank == source else 0 for rank in range(self.node.size)]
        self.exchange.move(mine, sent, received_sizes, [len(pack) for pack in packs])
        environments.unpack(safetensors.load(mine.tobytes()), self._columns(self.slices))

    @_in_step
    def gather_environments(self, environments: Environments) -> None:
        packed, size = safetensors.save(environments.pack(self._columns(self.slices))), self.node.size
        own = np.frombuffer(bytearray(packed), np.uint8)
        lengths = self.exchange.meet("environments", own.size)
        received_sizes = lengths if self.node.leads else [0] * size
        received = np.empty(sum(received_sizes), np.uint8)
        with self.exchange.transferring():
            sent_sizes = [own.size if rank == 0 else 0 for rank in range(size)]
            self.exchange.move(received, own, received_sizes, sent_sizes)
        ends = np.cumsum(received_sizes)
        for slices, end, length in zip(self.all_slices, ends, received_sizes, strict=True):
            if length:
                theirs = safetensors.load(received[end - length : end].tobytes())
                environments.unpack(theirs, self._columns(slices))

    def close(self) -> None:
        self.exchange.close()


def _digest(parameters: np.ndarray) -> str:
    return hashlib.blake2b(parameters.tobytes(), digest_size=16).hexdigest()


def join(
    settings: Settings, node: Node, machine: Machine, signals: Signals, say: Callable[[str], None]
) -> GlooCluster:
    """Connected to all other nodes."""
    with signals.interruptible():
        meeting = rendezvous.meet(settings, node, machine)
    rendezvous.connect(meeting, node, settings.cluster)
    first = meeting.hellos[node.rank]
    say(
        f"node {first.name} of {node.size}, over {meeting.interface} ({first.address}); nodes:"
        f" {', '.join(meeting.names)}"
    )
    if not meeting.rounds_alike:
        say(
            "the nodes round differently: what is learned depends on them, in the last bits (bit_exact:"
            " false)"
        )
    elif len({hello.cpu_model for hello in meeting.hellos}) > 1:
        say("the nodes have different CPUs: the run may stop because their results differ in the last bits")
    exact_order = settings.cluster.reduction == "tree"
    if not exact_order:
        say("cluster.reduction is gloo: what is learned depends on the number of nodes, in the last bits")
    return GlooCluster(settings.sizes, node, meeting, signals, exact_order=exact_order)
