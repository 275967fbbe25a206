"""What the nodes say to each other: small words at every meeting, then bytes. Nothing is added up here.

A meeting is a small message from everyone to everyone. A node that must stop says so instead of coming,
and all stop together. The time until the last one arrives is the wait, the time after it the transfer.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from parallel_ppo.cluster.missing_nodes import who_is_missing
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.cluster.rendezvous import Meeting
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
from parallel_ppo.machine.signals import Signals

WORD = 1024  # bytes of a node's message at a meeting
LONGEST_REASON = 300
PROBLEMS = {kind.code: kind for kind in (InputError, NumbersError, RestartsExhausted, StorageError)}


class Exchange:
    def __init__(self, node: Node, meeting: Meeting, signals: Signals, payload_bytes: int) -> None:
        """Every meeting has room for a payload, used or not: a node that must stop need not know where
        the others are.
        """
        self.node, self.signals = node, signals
        self.message = np.zeros(WORD + payload_bytes, np.uint8)
        self.payloads = np.zeros((node.size, payload_bytes), np.uint8)
        self.names, self.store = meeting.names, meeting.store
        self.wait = self.transfer = 0.0
        self.bytes_sent = 0
        self.meetings, self.iteration, self.broken = 0, 0, False

    @contextlib.contextmanager
    def announcing(self) -> Iterator[None]:
        """A problem that is raised in here becomes the problem of all."""
        try:
            yield
        except (RunError, Interrupted) as problem:
            if isinstance(problem, ClusterError) or getattr(problem, "agreed", False):
                raise
            with self.signals.deferred():
                self.meet("problem", problem=problem)
            raise AssertionError("an announced problem ends the meeting") from problem

    def meet(
        self,
        what: str,
        value: Any = None,
        *,
        payload: np.ndarray | None = None,
        problem: RunError | Interrupted | None = None,
    ) -> list[Any]:
        """Everyone's value. Raises on every node alike if any of them has a problem; the lowest rank's
        counts.
        """
        self.meetings += 1
        reason = [int(problem.code), _shortened(problem)] if problem else None
        word = json.dumps([self.meetings, what, value, reason], ensure_ascii=False).encode()
        assert len(word) <= WORD, f"{len(word)} bytes are too many for a meeting"
        began = time.monotonic()
        self.message[:WORD] = np.frombuffer(word.ljust(WORD), np.uint8)
        if payload is not None:
            self.message[WORD : WORD + payload.nbytes] = payload.reshape(-1).view(np.uint8)
        heard = self.everyone(self.message)
        self.payloads = heard[:, WORD:]
        self.wait += time.monotonic() - began
        words = [json.loads(row[:WORD].tobytes()) for row in heard]
        for rank, (*_, reason) in enumerate(words):
            if reason is not None:
                theirs = self._theirs(rank, *reason)
                raise _agreed(problem if problem is not None and rank == self.node.rank else theirs)
        for rank, (number, place, _, _) in enumerate(words):
            if (number, place) != (self.meetings, what):
                raise ClusterError(
                    f"node {self.names[rank]} is at {place!r} ({number}) while node"
                    f" {self.names[self.node.rank]} is at {what!r} ({self.meetings}); they do not run the"
                    " same program"
                )
        return [value for _, _, value, _ in words]

    def _theirs(self, rank: int, code: int, reason: str) -> RunError | Interrupted:
        if code in PROBLEMS:
            return PROBLEMS[ExitCode(code)](f"node {self.names[rank]}: {reason}")
        return Interrupted(ExitCode(code), f"{reason} on node {self.names[rank]}")

    def everyone(self, own: np.ndarray) -> np.ndarray:
        """One row of bytes from every node to every node, all of one length."""
        received = np.empty((self.node.size, own.nbytes), np.uint8)
        self.move(received.reshape(-1), np.tile(own.view(np.uint8), self.node.size))
        return received

    def move(
        self,
        received: np.ndarray,
        sent: np.ndarray,
        received_sizes: list[int] | None = None,
        sent_sizes: list[int] | None = None,
    ) -> None:
        """Node i's part j becomes node j's part i."""
        with self._noticing():
            distributed.all_to_all_single(
                torch.from_numpy(received), torch.from_numpy(sent), received_sizes, sent_sizes
            )
        kept = (
            sent.nbytes // self.node.size
            if sent_sizes is None
            else sent_sizes[self.node.rank] * sent.itemsize
        )
        self.bytes_sent += sent.nbytes - kept

    def add(self, data: np.ndarray) -> None:
        """Everyone's numbers become their sum, in place, in gloo's order of additions."""
        with self._noticing():
            distributed.all_reduce(torch.from_numpy(data))
        self.bytes_sent += 2 * (self.node.size - 1) * data.nbytes // self.node.size  # as a ring does it

    def broadcast(self, data: np.ndarray, source: int) -> None:
        """One node's bytes, in place."""
        with self._noticing():
            distributed.broadcast(torch.from_numpy(data), src=source)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.broken = True
            line = who_is_missing(self.store, self.node, self.names, self.iteration, error)
            raise ClusterError(line) from None

    @contextlib.contextmanager
    def transferring(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.transfer += time.monotonic() - began

    def close(self) -> None:
        if not self.broken and distributed.is_initialized():
            distributed.destroy_process_group()


def _shortened(problem: RunError | Interrupted) -> str:
    first_line = str(problem).partition("\n")[0]
    return first_line.encode()[:LONGEST_REASON].decode(errors="ignore")


def _agreed(problem: RunError | Interrupted) -> RunError | Interrupted:
    problem.agreed = True  # type: ignore[union-attr]
    return problem
