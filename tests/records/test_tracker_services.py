"""The real packages in their offline and local modes: a run that is killed and resumed is one run there,
each iteration once.

Run by `make test-extras`; skipped where a package is missing.
"""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, command

SMALL = ["--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "64", "--batch-size", "128", "--seed", "3"]
SMALL += [
    "--set",
    "logging.callbacks=[tests.library.watchers:pause]",
]  # a tracker must keep up on any machine
STEPS = 8 * 64
Rows = list[tuple[str, int, int]]  # run, steps, iteration


def environment(folder: Path) -> dict[str, str]:
    return {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "TRACKIO_DIR": str(folder / "trackio"),
        "HF_HOME": str(folder / "hf"),
    }


def wandb_rows(folder: Path) -> Rows:
    from wandb.proto import wandb_internal_pb2

    rows: Rows = []
    for segment in sorted((folder / "run" / "logs" / "wandb").glob("offline-run-*/*.wandb")):
        name = ""
        for data in leveldb_records(segment.read_bytes()[7:]):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                name = record.run.run_id
            if record.WhichOneof("record_type") == "history":
                values = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                rows.append((name, record.history.step.num, values["iteration"]))
    return rows


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Blocks of 32768 bytes (the first one short of the file's 7 bytes); 7 bytes of header: crc, length,
    kind.
    """
    position, whole = 0, b""
    while position + 7 <= len(data):
        left = 32768 - (position + 7) % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def mlflow_rows(folder: Path) -> Rows:
    query = "select run_uuid, step, value from metrics where key = 'iteration' order by step"
    with sqlite3.connect(folder / "mlflow.db") as database:
        return [(run, step, int(value)) for run, step, value in database.execute(query)]


def trackio_rows(folder: Path) -> Rows:
    (path,) = (folder / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        found = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    return [(run, step, json.loads(metrics)["iteration"]) for run, step, metrics in found]


READERS: dict[str, Callable[[Path], Rows]] = {
    "wandb": wandb_rows,
    "mlflow": mlflow_rows,
    "trackio": trackio_rows,
}


def trackers_of(run: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run).encode() in words and any(b"tracker_process" in word for word in words):
            found.append(int(folder.name))
    return found


def wait_for_trackers(run: Path) -> None:
    while trackers_of(run):
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("also_the_tracker", [False, True], ids=["run", "run-and-tracker"])
@pytest.mark.parametrize("name", list(READERS))
def test_a_killed_and_resumed_run_is_one_run_in_the_tracker(
    name: str, also_the_tracker: bool, tmp_path: Path
) -> None:
    pytest.importorskip(name)
    run, variables = tmp_path / "run", environment(tmp_path)
    arguments = [*SMALL, "--set", f"logging.trackers=[{name}]", "--set", "logging.checkpoint_iterations=3"]
    endless = [*arguments, "--total-timesteps", "100000000", "--quiet", "--output-dir", str(run)]
    first = subprocess.Popen(
        [sys.executable, str(ROOT / "train_timed.py"), *endless], env=os.environ | variables
    )
    state, deadline = run / "logs" / f"tracker-{name}.json", time.monotonic() + 300
    while not (state.exists() and num_iterations(run) > 10) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(5)  # it is sending by now
    if also_the_tracker:
        for pid in trackers_of(run):
            os.kill(pid, signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_for_trackers(run)  # it sends the rest, and ends
    count = num_iterations(run) + 10
    second = command(
        "train_timed.py",
        "--resume",
        str(run),
        "--total-timesteps",
        str(count * STEPS),
        "--quiet",
        env=variables,
    )
    assert second.code == 0 and (not second.err or "is still sending" in second.err), second.err
    wait_for_trackers(run)
    rows = sorted(READERS[name](tmp_path), key=lambda row: row[1])
    assert [(step, iteration) for _, step, iteration in rows] == [(k * STEPS, k) for k in range(1, count + 1)]
    assert len({run_id for run_id, _, _ in rows}) == 1


def num_iterations(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
