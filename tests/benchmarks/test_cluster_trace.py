"""The idle shares that the benchmark of clusters reads from a trace."""

import os
from pathlib import Path

import pytest

from benchmarks.cluster import idle_by_phase
from parallel_ppo.exits import InputError
from parallel_ppo.records.timeline import Phase
from parallel_ppo.records.trace import Trace, read_events
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, Microbatch, Span, Task


def write_trace(path: Path, *, lag: bool) -> Path:
    """Four iterations of 10 s on two workers: collect 4, gradients 4, exchange 2. With a lag the first
    worker collects all along.
    """
    trace = Trace(path, origin=0.0, num_workers=2, warn=pytest.fail)
    for iteration in range(4):
        at = 10.0 * iteration
        phases = [Phase("collect", at, at + 4), Phase("gradients", at + 4, at + 8)]
        gradient = Task(GRADIENT, 0, iteration, Microbatch(0, 3))
        spans = [Span(0, gradient, at + 4, at + 8), Span(1, gradient, at + 4, at + 7)]
        spans += [Span(0, Task(COLLECT, 0, iteration), at, at + (10 if lag else 4)),
                  Span(1, Task(COLLECT, 1, iteration), at, at + 2)]  # fmt: skip
        trace.add([*phases, Phase("exchange", at + 8, at + 10)], spans)
    trace.close()
    return path


def test_a_collect_that_goes_on_during_the_exchange_is_seen(tmp_path: Path) -> None:
    before = idle_by_phase(write_trace(tmp_path / "before.json", lag=False))
    after = idle_by_phase(write_trace(tmp_path / "after.json", lag=True))
    assert before["exchange"] == pytest.approx((2, 1)) and after["exchange"] == pytest.approx((2, 0.5))
    assert before["collect"] == pytest.approx((4, 0.25))
    assert before["gradients"] == pytest.approx((4, 0.125))


def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text in (
        "{}",
        "[1]",
        "[" * 90_000,
        '{"traceEvents": [{"ph": "X", "tid": 1, "name": "x", "ts": "soon"}]}',
    ):
        other.write_text(text)
        with pytest.raises(InputError, match=r"other\.json: expected the file of a run with --trace"):
            read_events(other)
    other.unlink()
    os.mkfifo(other)
    with pytest.raises(InputError, match="expected the file of a run"):
        read_events(other)
