"""Many nodes as one: what has to be the same everywhere is exchanged here; and the null object for a run on one node.

Every node runs the same loop over its own slices and meets the others at the same places in the same order. A place is a
`_meet` (a small message from everyone to everyone: a node that must stop says so here, and all stop together) and then the data.
The time until the last one arrives is the wait, the time after it the transfer. T steps, E envs, L lanes, P parameters.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as distributed
from safetensors import numpy as safetensors

from parallel_ppo import nodes, ppo, rendezvous
from parallel_ppo.config import Shape
from parallel_ppo.exits import (
    ClusterError,
    ExitCode,
    InputError,
    Interrupted,
    NumbersError,
    RestartsExhausted,
    RunError,
    StorageError,
)
from parallel_ppo.lost import who_is_missing
from parallel_ppo.nodes import Node
from parallel_ppo.planning import Plan
from parallel_ppo.rendezvous import Meeting
from parallel_ppo.shared import BLOCK, Memory
from parallel_ppo.signals import Signals
from parallel_ppo.state import Counters, Snapshot, TrainingState

COLUMNS = ("reward", "value", "episode_start", "truncated", "final_value", "level_seed")
PLAIN = ("carry_observation", "carry_start", "state_length")  # and state_bytes, of which only a part is used
MESSAGE = 1024  # bytes of a node's word at a meeting
LONGEST_REASON = 400
PROBLEMS = {kind.code: kind for kind in (InputError, NumbersError, RestartsExhausted, StorageError)}


class NodeReport(NamedTuple):
    """One node's iteration: seconds, and what must be known of all nodes."""

    name: str
    elapsed: float  # of the run, by this node's clock
    t_rollout: float
    t_learn: float
    t_wait: float
    t_transfer: float
    num_workers: int
    restarts: int
    exact: bool


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
        return [report]

    def close(self) -> None:
        pass


def _in_step(method: Callable) -> Callable:
    """A signal may not tear a node out between the messages of one meeting; it is raised after the last of them."""

    def wrapped(self: "GlooCluster", *arguments: Any) -> Any:
        with self.signals.deferred():
            return method(self, *arguments)

    return wrapped


class GlooCluster:
    def __init__(self, shape: Shape, node: Node, meeting: Meeting, signals: Signals) -> None:
        self.shape, self.node, self.signals, self.meeting = shape, node, signals, meeting
        self.names, self.store = meeting.names, meeting.store
        self.slices, self.lanes = nodes.own_slices(shape, node), nodes.own_lanes(shape, node)
        everyone = [Node(rank, node.size) for rank in range(node.size)]
        self.all_slices = [nodes.own_slices(shape, other) for other in everyone]
        self.all_lanes = [nodes.own_lanes(shape, other) for other in everyone]
        size = nodes.group_size(shape, node.size)
        self.groups = nodes.groups(self.lanes, size)
        self.num_groups = [len(nodes.groups(lanes, size)) for lanes in self.all_lanes]
        self.reduced_lanes = self.lanes if max(self.num_groups) == 1 else self.lanes[:0]
        self.wait = self.transfer = 0.0
        self.meetings, self.iteration, self.broken = 0, 0, False
        self.send: np.ndarray | None = None

    def place_on_host(self) -> tuple[int, int]:
        return self.meeting.place_on_host(self.node.rank)

    # --- meeting ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def announcing(self) -> Iterator[None]:
        try:
            yield
        except (RunError, Interrupted) as problem:
            if isinstance(problem, ClusterError) or getattr(problem, "agreed", False):
                raise
            with self.signals.deferred():
                self._meet("problem", problem=problem)
            raise AssertionError("an announced problem ends the meeting") from problem

    def _meet(self, what: str, value: Any = None, problem: RunError | Interrupted | None = None) -> list[Any]:
        """Everyone's value. Raises on every node alike if any of them has a problem."""
        self.meetings += 1
        reason = [int(problem.code), str(problem).partition("\n")[0][:LONGEST_REASON]] if problem else None
        word = json.dumps([self.meetings, what, value, reason]).encode()
        assert len(word) <= MESSAGE, f"{len(word)} bytes are too many for a meeting"
        began = time.monotonic()
        heard = self._everyone(np.frombuffer(word.ljust(MESSAGE), np.uint8))
        self.wait += time.monotonic() - began
        words = [json.loads(row.tobytes()) for row in heard]
        for rank, (*_, reason) in enumerate(words):
            if reason is not None:
                raise _agreed(problem if problem and rank == self.node.rank else self._theirs(rank, *reason))
        for rank, (number, place, _, _) in enumerate(words):
            if (number, place) != (self.meetings, what):
                raise ClusterError(
                    f"node {self.names[rank]} is at {place!r} ({number}) while node {self.names[self.node.rank]} is at {what!r} ({self.meetings}); they do not run the same program"
                )
        return [value for _, _, value, _ in words]

    def _theirs(self, rank: int, code: int, reason: str) -> RunError | Interrupted:
        if code in PROBLEMS:
            return PROBLEMS[ExitCode(code)](f"node {self.names[rank]}: {reason}")
        return Interrupted(ExitCode(code), f"{reason} on node {self.names[rank]}")

    def _everyone(self, own: np.ndarray) -> np.ndarray:
        """One row from every node to every node, all of one length."""
        received = np.empty((self.node.size, own.nbytes), np.uint8)
        self._exchange(received.reshape(-1), np.tile(own.view(np.uint8), self.node.size))
        return received

    def _exchange(
        self,
        received: np.ndarray,
        sent: np.ndarray,
        received_sizes: list[int] | None = None,
        sent_sizes: list[int] | None = None,
    ) -> None:
        """The one primitive: node i's part j becomes node j's part i. Bytes are only moved, never added."""
        try:
            distributed.all_to_all_single(
                torch.from_numpy(received), torch.from_numpy(sent), received_sizes, sent_sizes
            )
        except RuntimeError as error:
            self.broken = True
            raise ClusterError(
                who_is_missing(self.store, self.node, self.names, self.iteration, error)
            ) from None

    @contextlib.contextmanager
    def _transferring(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.transfer += time.monotonic() - began

    # --- the loop's questions ---------------------------------------------------------------------------------------------

    @_in_step
    def decide(self, value: str | None) -> str | None:
        return self._meet("decide", value)[0]

    @_in_step
    def close_iteration(self, report: NodeReport) -> list[NodeReport]:
        own = report._replace(t_wait=self.wait, t_transfer=self.transfer)
        self.wait = self.transfer = 0.0
        return [NodeReport(*values) for values in self._meet("close", own)]

    # --- the iteration ----------------------------------------------------------------------------------------------------

    @_in_step
    def gather_columns(self, state: TrainingState) -> None:
        """The scalar columns of all slices, so that every node computes advantages on the whole; and proof that all are one."""
        memory, self.iteration = state.memory, state.counters.iteration
        self._same_parameters(self._meet("columns", _digest(memory.parameters)))
        with self._transferring():
            self._gather_along(
                [getattr(memory, name) for name in COLUMNS],
                [self._columns(slices) for slices in self.all_slices],
                axis=1,
            )

    @_in_step
    def gather_slices(self, rows: np.ndarray) -> np.ndarray:
        self._meet("slices")
        whole = np.empty((self.shape.num_slices, *rows.shape[1:]), rows.dtype)
        whole[self.slices.start : self.slices.stop] = rows
        with self._transferring():
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
        self._exchange(received, np.tile(own, self.node.size), sizes, [own.nbytes] * self.node.size)
        position = 0
        for piece in (piece for node in pieces for piece in node):
            data = received[position : position + piece.nbytes]
            piece[...] = data.view(piece.dtype).reshape(piece.shape)
            position += piece.nbytes

    def _same_parameters(self, digests: list[str]) -> None:
        for name, digest in zip(self.names, digests, strict=True):
            if digest != digests[0]:
                raise ClusterError(
                    f"node {name} has other parameters than node {self.names[0]} at iteration {self.iteration}; nodes with different CPUs or libraries cannot train together"
                )

    # --- gradients --------------------------------------------------------------------------------------------------------

    @_in_step
    def sum_gradients(self, memory: Memory) -> None:
        """Lanes' gradients of all nodes, summed in the one tree; each node finishes the tree for its range of parameters.

        As many bytes travel as in a ring all-reduce, but the order of additions is that of one node.
        """
        self._meet("gradients")
        with self._transferring():
            num_parameters, size = memory.gradient.size, self.node.size
            chunk = -(-num_parameters // size)
            sent = self._group_sums(memory, chunk)
            received = np.empty((sum(self.num_groups), chunk), np.float32)
            self._exchange(
                received.reshape(-1), sent.reshape(-1), [number * chunk for number in self.num_groups], [len(self.groups) * chunk] * size
            )  # fmt: skip
            own = ppo.tree_sum(list(torch.from_numpy(received))).numpy()
            summed, statistics = self._return_sums(own, memory)
            memory.gradient[:] = summed.reshape(-1)[:num_parameters]
            for lanes, rows in zip(self.all_lanes, statistics, strict=True):
                memory.lane_statistics[lanes.start : lanes.stop] = rows[: len(lanes)]
            gradient = memory.tensor("gradient")
            for block, first in enumerate(range(0, num_parameters, BLOCK)):
                memory.gradient_squares[block] = float(
                    gradient[first : first + BLOCK].double().square().sum()
                )

    def _group_sums(self, memory: Memory, chunk: int) -> np.ndarray:
        """[node, own group, chunk of parameters]: what each node needs to finish its range."""
        if self.send is None:
            self.send = np.zeros((self.node.size, len(self.groups), chunk), np.float32)
        flat, lanes = np.zeros(self.node.size * chunk, np.float32), memory.tensor("lane_gradient")
        for index, group in enumerate(self.groups):
            if self.reduced_lanes:
                total = memory.gradient
            else:
                total = ppo.tree_sum(list(lanes[group.start : group.stop])).numpy()
            flat[: total.size] = total
            self.send[:, index] = flat.reshape(self.node.size, chunk)
        return self.send

    def _return_sums(self, own: np.ndarray, memory: Memory) -> tuple[np.ndarray, np.ndarray]:
        """Everyone's range of the sum, [node, chunk]; and the loss statistics of everyone's lanes beside it."""
        longest, width = max(map(len, self.all_lanes)), memory.lane_statistics.shape[1]
        statistics = np.zeros((longest, width), np.float64)
        statistics[: len(self.lanes)] = memory.lane_statistics[self.lanes.start : self.lanes.stop]
        bucket = np.concatenate([statistics.reshape(-1).view(np.uint8), own.view(np.uint8)])
        heard = self._everyone(bucket)
        rows = np.ascontiguousarray(heard[:, : statistics.nbytes]).view(np.float64)
        sums = np.ascontiguousarray(heard[:, statistics.nbytes :]).view(np.float32)
        return sums, rows.reshape(self.node.size, longest, width)

    # --- states -----------------------------------------------------------------------------------------------------------

    @_in_step
    def share_state(self, state: TrainingState) -> None:
        """The first node's state becomes everyone's, and its environments are dealt to their owners."""
        counters, length, restored = self._meet("state", self._state_size(state))[0]
        snapshot = state.snapshot()
        data = np.frombuffer(bytearray(safetensors.save(snapshot.arrays)), np.uint8) if self.node.leads else np.empty(length, np.uint8)  # fmt: skip
        self._broadcast(data)
        state.rewind(Snapshot(counters, safetensors.load(data.tobytes()), {}))
        state.counters = Counters(**counters)
        if restored:
            self._deal_environments(state)
        self._same_parameters(self._meet("shared", _digest(state.memory.parameters)))

    def _state_size(self, state: TrainingState) -> Any:
        snapshot = state.snapshot()
        restored = bool(state.memory.state_stamp[state.counters.iteration % 2, 0] >= 0)
        return (
            [snapshot.counters, len(safetensors.save(snapshot.arrays)), restored] if self.node.leads else None
        )

    def _broadcast(self, data: np.ndarray) -> None:
        try:
            distributed.broadcast(torch.from_numpy(data), src=0)
        except RuntimeError as error:
            self.broken = True
            raise ClusterError(
                who_is_missing(self.store, self.node, self.names, self.iteration, error)
            ) from None

    def _deal_environments(self, state: TrainingState) -> None:
        environments, iteration = state.snapshot().environments, state.counters.iteration
        packs = [_pack(environments, self._columns(slices)) if self.node.leads else b"" for slices in self.all_slices]  # fmt: skip
        lengths = np.array([len(pack) for pack in packs], np.int64)
        self._meet("deal")
        self._broadcast(lengths)
        mine = np.empty(lengths[self.node.rank], np.uint8)
        sent = np.frombuffer(bytearray(b"".join(packs)), np.uint8)
        received_sizes = [mine.size if rank == 0 else 0 for rank in range(self.node.size)]
        self._exchange(mine, sent, received_sizes, [len(pack) for pack in packs])
        _unpack(environments, self._columns(self.slices), mine.tobytes())
        state.memory.state_stamp[iteration % 2, self.slices.start : self.slices.stop] = iteration

    @_in_step
    def gather_environments(self, snapshot: Snapshot) -> None:
        """Everyone's environments into the first node's memory, which its snapshot refers to."""
        environments = snapshot.environments
        own = np.frombuffer(bytearray(_pack(environments, self._columns(self.slices))), np.uint8)
        lengths = self._meet("environments", own.size)
        received_sizes = lengths if self.node.leads else [0] * self.node.size
        received = np.empty(sum(received_sizes), np.uint8)
        with self._transferring():
            self._exchange(received, own, received_sizes, [own.size if rank == 0 else 0 for rank in range(self.node.size)])  # fmt: skip
        ends = np.cumsum(received_sizes)
        for slices, end, length in zip(self.all_slices, ends, received_sizes, strict=True):
            if length:
                _unpack(environments, self._columns(slices), received[end - length : end].tobytes())

    def close(self) -> None:
        if not self.broken and distributed.is_initialized():
            distributed.destroy_process_group()


def _agreed(problem: RunError | Interrupted) -> RunError | Interrupted:
    problem.agreed = True  # type: ignore[union-attr]
    return problem


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
    return GlooCluster(settings.shape, node, meeting, signals)
