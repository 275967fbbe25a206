"""Phases, shares and traces, from made-up spans; and one trace of a real run that is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.records import timeline
from parallel_ppo.records.timeline import (
    Phase,
    Timeline,
    idle_shares,
    phase_shares,
    process_started,
    seconds_alone,
)
from parallel_ppo.records.trace import Trace, read_events
from parallel_ppo.training import planning, session
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, Microbatch, Span, Task

ROOT = Path(__file__).resolve().parents[2]
MICROBATCH = Task(GRADIENT, 0, 0, Microbatch(0, 3))


# Two workers: ten seconds of collection, ten of update; the second worker does less.
SPANS = [
    Span(0, Task(COLLECT, 0, 0), 100.0, 110.0),
    Span(1, Task(COLLECT, 1, 0), 100.0, 108.0),
    Span(0, MICROBATCH, 111.0, 119.0),
    Span(1, MICROBATCH._replace(number=1), 111.0, 116.0),
    Span(0, Task("sum", 0, 0, Microbatch(0, 3)), 119.0, 120.0),
]
PHASES = [
    Phase("advantages", 110.0, 111.0),
    Phase("gradients", 111.0, 119.0),
    Phase("reduce", 119.0, 120.0),
]


def test_a_timeline_has_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr(timeline.time, "monotonic", lambda: next(moments))
    line = Timeline()
    line.enter("moments")
    line.enter("gradients")
    line.leave()
    phases = line.take()
    assert phases == [Phase("moments", 1.0, 3.0), Phase("gradients", 3.0, 6.0)]
    assert line.take() == []
    assert seconds_alone(phases) == 2.0


def test_this_process_began_in_the_past() -> None:
    assert 0 < time.monotonic() - process_started() < 3600


def test_idle_shares_of_collection_and_update_are_separate() -> None:
    shares = idle_shares(SPANS, 2, collect=10.0, update=10.0)
    assert shares["idle_collect"] == pytest.approx(0.1)
    assert shares["idle_collect_worst"] == pytest.approx(0.2)
    assert shares["idle_update"] == pytest.approx(1 - (9 + 5) / 20)
    assert shares["idle_update_worst"] == pytest.approx(0.5)
    assert shares["idle_workers"] == pytest.approx([1 - 19 / 20, 1 - 13 / 20])


def test_a_worker_that_did_nothing_is_idle() -> None:
    assert idle_shares(SPANS, 3, collect=10.0, update=10.0)["idle_collect_worst"] == 1.0


def test_phase_shares_are_one_in_sum() -> None:
    shares = phase_shares(PHASES, t_rollout=10.0, t_iter=25.0)
    assert shares == pytest.approx(
        {
            "share_collect": 0.4,
            "share_gradients": 0.32,
            "share_reduce": 0.04,
            "share_exchange": 0.0,
            "share_coordinator": 0.24,
        }
    )


# --- the file -----------------------------------------------------------------------------------------------


def make_trace(path: Path, warnings: list[str], **options: int) -> Trace:
    return Trace(path, origin=100.0, num_workers=2, warn=warnings.append, **options)


def test_every_phase_and_wait_is_in_the_trace(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.json", [])
    trace.add(PHASES, SPANS)
    events = [event for event in read_events(tmp_path / "t.json") if event["ph"] == "X"]  # not yet closed
    second = [(event["name"], event["ts"], event["dur"]) for event in events if event["tid"] == 2]
    assert second == [
        ("collect", 0, 8_000_000),
        ("wait", 8_000_000, 3_000_000),
        ("gradient", 11_000_000, 5_000_000),
    ]
    assert {event["name"]: event["cat"] for event in events if event["tid"] == 0} == {
        "advantages": "phase",
        "gradients": "wait",
        "reduce": "wait",
    }
    trace.add([], [Span(1, MICROBATCH, 125.0, 126.0)])  # the wait reaches over two calls
    assert read_events(tmp_path / "t.json")[-2]["dur"] == 9_000_000
    trace.close()
    trace.close()


def test_a_full_trace_stays_valid_and_says_so_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    trace = make_trace(tmp_path / "t.json", warnings, max_bytes=3000)
    for _ in range(20):
        trace.add(PHASES, SPANS)
    assert read_events(tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 3100
    assert len(warnings) == 1 and "full" in warnings[0]


def test_a_failing_disk_ends_the_trace_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    trace, second = (make_trace(tmp_path / name, warnings) for name in ("t.json", "second.json"))
    whole = os.pwrite

    def torn(descriptor: int, data: bytes, offset: int) -> int:
        return whole(descriptor, data[:50], offset)

    monkeypatch.setattr(os, "pwrite", torn)
    trace.add(PHASES, SPANS)
    assert len(read_events(tmp_path / "t.json")) == 6  # the names of three tracks
    assert len(warnings) == 1 and "disk is full" in warnings[0]

    def broken(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", broken)
    second.add(PHASES, SPANS)
    assert len(warnings) == 2 and "goes on without a trace" in warnings[1]


def test_a_trace_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "trace-1.json").touch()
    assert session.next_trace(tmp_path) == tmp_path / "trace-2.json"
    with pytest.raises(InputError, match="exists already"):
        planning.check_trace(tmp_path / "trace-1.json")
    with pytest.raises(InputError, match="not a directory"):
        planning.check_trace(tmp_path / "nowhere" / "t.json")


# --- a run --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ctrl_c_leaves_a_whole_trace(tmp_path: Path) -> None:
    command = [sys.executable, "train_parallel_timed.py", "--env", "CartPole-v1", "--num-envs", "16",
    "--num-workers", "2",
               "--duration", "0.1", "--trace", "--output-dir", str(tmp_path / "run")]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"train_parallel_timed.py --resume {tmp_path / 'run'}" in output
    events = read_events(tmp_path / "run" / "trace-1.json")
    names = {(event["tid"], event["name"]) for event in events}
    assert {(0, "start-up"), (0, "collect"), (0, "gradients"), (1, "collect"), (2, "gradient")} <= names
    assert_nested([event for event in events if event["ph"] == "X"])
    record = json.loads(metrics.read_text().splitlines()[0])
    assert len(record["idle_workers"]) == 2
    assert sum(value for name, value in record.items() if name.startswith("share_")) == pytest.approx(1)


def assert_nested(events: list[dict]) -> None:
    """On one track an event lies within another or beside it, as viewers expect."""
    for track in {event["tid"] for event in events}:
        open_until: list[int] = []
        mine = [event for event in events if event["tid"] == track]
        for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 50, event  # microseconds
            open_until.append(end)


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
