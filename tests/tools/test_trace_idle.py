"""The idle shares that a trace tells."""

import os
from pathlib import Path

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.records.timeline import Phase
from parallel_ppo.records.trace import ChromeTrace
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, Microbatch, Task
from tools.trace_idle import idle_by_phase, picture


def write_trace(path: Path, *, lag: bool) -> Path:
    """Four iterations of 10 s on two workers: collect 4, gradients 4, exchange 2. With a lag the first
    worker collects all along.
    """
    trace = ChromeTrace(path, origin=0.0, num_workers=2, warn=pytest.fail)
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
    assert before["exchange"].seconds == after["exchange"].seconds == pytest.approx(2)
    assert (before["exchange"].idle, after["exchange"].idle) == (pytest.approx(1), pytest.approx(0.5))
    assert before["collect"].idle == pytest.approx(0.25)
    assert before["gradients"].idle == pytest.approx(0.125)


def test_what_is_no_trace_or_too_short_is_said(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text in (
        "{}",
        "[1]",
        "[" * 90_000,
        '{"traceEvents": [{"ph": "X", "tid": 1, "name": "x", "ts": "soon"}]}',
    ):
        other.write_text(text)
        with pytest.raises(InputError, match=r"other\.json: expected the file of a run with --trace"):
            idle_by_phase(other)
    other.unlink()
    os.mkfifo(other)
    with pytest.raises(InputError, match="expected the file of a run"):
        idle_by_phase(other)
    with pytest.raises(InputError, match="too few iterations; trace at least 5"):
        idle_by_phase(write_trace(tmp_path / "short.json", lag=False), skip=3)


def test_the_picture_shows_whom_the_exchange_keeps_waiting(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / f"{lag}.json", lag=lag) for lag in (False, True)]
    axes = picture(traces, 1).get_axes()
    widths = [sorted(bar.get_width() for bar in one.patches) for one in axes]
    assert widths == [[2, 2, 3, 4, 4, 4, 4], [2, 2, 3, 4, 4, 4, 10]]
