"""Every phase and every wait of coordinator and workers in the Chrome trace format; ui.perfetto.dev shows it.

The file is valid JSON after every write, however the run ends.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from parallel_ppo.exits import InputError
from parallel_ppo.records.timeline import DELEGATED, Phase
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.workers.tasks import Span

MAX_BYTES = 64_000_000  # viewers become slow beyond; hundreds of iterations fit
TAIL = "\n]}\n"
COORDINATOR = 0  # the track; worker n is on track n + 1

Event = dict[str, Any]


class Trace:
    def __init__(
        self,
        path: Path,
        *,
        origin: float,
        num_workers: int,
        warn: Callable[[str], None],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`origin` is the zero of the time axis."""
        self.path, self.origin, self.warn, self.max_bytes = path, origin, warn, max_bytes
        self.last_end: dict[int, float] = {}
        self.descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        head = '{"displayTimeUnit":"ms","traceEvents":[\n'
        os.write(self.descriptor, (head + TAIL).encode())
        self.end, self.is_empty = len(head), True
        names = ["coordinator", *(f"worker {index}" for index in range(num_workers))]
        self._write(event for track, name in enumerate(names) for event in _named(track, name))

    def add(self, phases: list[Phase], spans: list[Span]) -> None:
        """Phases and spans that ended since the last call."""
        self._write(self._events(phases, spans))

    def close(self) -> None:
        """May be called twice."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = None

    def _events(self, phases: list[Phase], spans: list[Span]) -> Iterable[Event]:
        for phase in phases:
            kind = "wait" if phase.name in DELEGATED else "phase"
            yield self._complete(COORDINATOR, phase.name, kind, phase.started, phase.ended)
        for span in sorted(spans, key=lambda span: span.started):
            before = self.last_end.get(span.worker)
            if before is not None and before < span.started:
                yield self._complete(span.worker + 1, "wait", "wait", before, span.started)
            self.last_end[span.worker] = max(span.ended, before or 0.0)
            task = span.task
            event = self._complete(span.worker + 1, task.kind, "task", span.started, span.ended)
            yield event | {
                "args": {"number": task.number, "iteration": task.iteration, "detail": task.detail}
            }

    def _complete(self, track: int, name: str, kind: str, started: float, ended: float) -> Event:
        """Microseconds. Both ends are rounded, so that neighbors touch and never overlap."""
        first, last = (round((moment - self.origin) * 1e6) for moment in (started, ended))
        return {
            "ph": "X",
            "pid": 1,
            "tid": track,
            "name": name,
            "cat": kind,
            "ts": first,
            "dur": last - first,
        }

    def _write(self, events: Iterable[Event]) -> None:
        """One system call that overwrites the closing brackets and writes them again."""
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        if self.descriptor is None or not text:
            return
        data = (("" if self.is_empty else ",\n") + text).encode()
        if self.end + len(data) > self.max_bytes:
            self.warn(
                f"{self.path}: the trace is full at {self.end / 1e6:.0f} MB; the run goes on without it"
            )
            self.close()
            return
        try:
            written = os.pwrite(self.descriptor, data + TAIL.encode(), self.end)
            if written < len(data) + len(TAIL):
                raise OSError("the disk is full")
        except OSError as error:
            self.warn(f"{self.path}: cannot be written ({error}); the run goes on without a trace")
            self._mend()
            return
        self.end, self.is_empty = self.end + len(data), False

    def _mend(self) -> None:
        """Back to the last whole write, whose space is already allocated."""
        assert self.descriptor is not None
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, TAIL.encode(), self.end)
            os.ftruncate(self.descriptor, self.end + len(TAIL))
        self.close()


def read_events(path: Path) -> list[Event]:
    """The events of a trace, which may have any content. InputError: it is none."""
    try:
        events = json.loads(read_regular(path, MAX_BYTES + len(TAIL)))["traceEvents"]
        is_trace = isinstance(events, list) and all(map(_is_event, events))
    except (Damaged, ValueError, LookupError, TypeError, RecursionError):
        is_trace = False
    if not is_trace:
        raise InputError(f"{path}: expected the file of a run with --trace")
    return events


def _is_event(event: Event) -> bool:
    numbers = ("tid",) if event["ph"] == "M" else ("tid", "ts", "dur")
    return all(type(event[key]) in (int, float) for key in numbers) and isinstance(event["name"], str)


def _named(track: int, name: str) -> list[Event]:
    common = {"ph": "M", "pid": 1, "tid": track}
    return [
        common | {"name": "thread_name", "args": {"name": name}},
        common | {"name": "thread_sort_index", "args": {"sort_index": track}},
    ]
