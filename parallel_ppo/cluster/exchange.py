"""How nodes exchange messages and bytes. Nothing is added up here.

All nodes gather messages at the same points of the loop. A node that must stop sends its problem as its next
message, and all stop together. The time until the last message arrives is the wait, the time after it the
transfer.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from parallel_ppo.cluster.nodes import Node
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

MESSAGE_BYTES = 1024
MAX_REASON_BYTES = 300
PROBLEMS = {kind.code: kind for kind in (InputError, NumbersError, RestartsExhausted, StorageError)}
PATIENCE = 2.0  # seconds for others to notice a lost node too: this node's connections close first
POLL = 0.05


class Exchange:
    def __init__(self, node: Node, names: list[str], store: distributed.Store, payload_bytes: int) -> None:
        """Every message has room for a payload, used or not: a node that must stop need not know where
        the others are.
        """
        self.node, self.names, self.store = node, names, store
        self.message = np.zeros(MESSAGE_BYTES + payload_bytes, np.uint8)
        self.payloads = np.zeros((node.size, payload_bytes), np.uint8)
        self.wait = self.transfer = 0.0
        self.bytes_sent = self.messages_sent = 0
        self.number, self.iteration, self.broken = 0, 0, False

    @contextlib.contextmanager
    def announcing(self) -> Iterator[None]:
        """A problem that is raised in here becomes the problem of all."""
        try:
            yield
        except (RunError, Interrupted) as problem:
            if isinstance(problem, ClusterError) or getattr(problem, "agreed", False):
                raise
            self.gather_messages("problem", problem=problem)
            raise AssertionError("a node with a problem leaves `gather_messages` by raising it") from problem

    def gather_messages(
        self,
        place: str,
        value: Any = None,
        *,
        payload: np.ndarray | None = None,
        problem: RunError | Interrupted | None = None,
    ) -> list[Any]:
        """Everyone's value. If any node has a problem, all nodes raise that of the lowest rank."""
        self.number += 1
        reason = [int(problem.code), _shortened(problem)] if problem else None
        text = json.dumps([self.number, place, value, reason], ensure_ascii=False).encode()
        assert len(text) <= MESSAGE_BYTES, f"{len(text)} bytes are too many for a message"
        began = time.monotonic()
        self.message[:MESSAGE_BYTES] = np.frombuffer(text.ljust(MESSAGE_BYTES), np.uint8)
        if payload is not None:
            self.message[MESSAGE_BYTES : MESSAGE_BYTES + payload.nbytes] = payload.reshape(-1).view(np.uint8)
        received = np.empty((self.node.size, self.message.nbytes), np.uint8)
        self.all_to_all(received.reshape(-1), np.tile(self.message, self.node.size))
        self.payloads = received[:, MESSAGE_BYTES:]
        self.wait += time.monotonic() - began
        messages = [json.loads(row[:MESSAGE_BYTES].tobytes()) for row in received]
        for rank, (*_, reason) in enumerate(messages):
            if reason is not None:
                is_own = problem is not None and rank == self.node.rank
                agreed = problem if is_own else self._problem_of(rank, *reason)
                agreed.agreed = True  # type: ignore[union-attr]
                raise agreed  # type: ignore[misc]
        for rank, (number, their_place, _, _) in enumerate(messages):
            if (number, their_place) != (self.number, place):
                raise ClusterError(
                    f"node {self.names[rank]} is at {their_place!r} ({number}) while node"
                    f" {self.names[self.node.rank]} is at {place!r} ({self.number}); they do not run the"
                    " same program"
                )
        return [value for _, _, value, _ in messages]

    def _problem_of(self, rank: int, code: int, reason: str) -> RunError | Interrupted:
        if code in PROBLEMS:
            return PROBLEMS[ExitCode(code)](f"node {self.names[rank]}: {reason}")
        return Interrupted(ExitCode(code), f"{reason} on node {self.names[rank]}")

    def all_to_all(
        self,
        received: np.ndarray,
        sent: np.ndarray,
        received_sizes: list[int] | None = None,
        sent_sizes: list[int] | None = None,
    ) -> None:
        """Node i's part j becomes node j's part i. Sizes in elements; equal parts by default."""
        with self._naming_lost_nodes():
            distributed.all_to_all_single(
                torch.from_numpy(received), torch.from_numpy(sent), received_sizes, sent_sizes
            )
        sizes = sent_sizes or [sent.size // self.node.size] * self.node.size
        others = [size for rank, size in enumerate(sizes) if rank != self.node.rank]
        self.bytes_sent += sum(others) * sent.itemsize
        self.messages_sent += sum(size > 0 for size in others)

    def add(self, data: np.ndarray) -> None:
        """The sum over all nodes, in place, in gloo's order of additions."""
        with self._naming_lost_nodes():
            distributed.all_reduce(torch.from_numpy(data))
        self.bytes_sent += 2 * (self.node.size - 1) * data.nbytes // self.node.size  # of a ring
        self.messages_sent += 2 * (self.node.size - 1)

    def broadcast(self, data: np.ndarray, source: int) -> None:
        """One node's bytes, in place."""
        with self._naming_lost_nodes():
            distributed.broadcast(torch.from_numpy(data), src=source)

    @contextlib.contextmanager
    def transferring(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.transfer += time.monotonic() - began

    def close(self) -> None:
        if not self.broken and distributed.is_initialized():
            distributed.destroy_process_group()

    # --- lost nodes -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _naming_lost_nodes(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.broken = True
            lost = self._lost_nodes("did not respond in time" if "imed out" in str(error) else "disconnected")
            raise ClusterError(
                f"{lost} (iteration {self.iteration}); nothing new was saved, the last checkpoint stands"
            ) from None

    def _lost_nodes(self, fault: str) -> str:
        """Nodes that still reach the first node's store say so there; the others are lost. Closes this node's
        connections, so that no node waits for it any longer.
        """
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            distributed.destroy_process_group()
        present: set[int] = set()

        def ask() -> None:
            with contextlib.suppress(RuntimeError, ValueError):
                self.store.set(f"alive/{self.node.rank}", "1")
                until = time.monotonic() + PATIENCE
                while len(present) < self.node.size and time.monotonic() < until:
                    present.update(
                        rank for rank in range(self.node.size) if self.store.check([f"alive/{rank}"])
                    )
                    time.sleep(POLL)

        asking = threading.Thread(target=ask, daemon=True)  # a store behind a cut link may never answer
        asking.start()
        asking.join(PATIENCE + 0.5)
        if not present:
            return f"node {self.names[0]} cannot be reached"
        lost = [name for rank, name in enumerate(self.names) if rank not in present]
        return f"node {', '.join(lost)} {fault}" if lost else "a connection between the nodes failed"


def _shortened(problem: RunError | Interrupted) -> str:
    first_line = str(problem).partition("\n")[0]
    return first_line.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
