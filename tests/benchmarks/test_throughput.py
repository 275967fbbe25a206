"""The benchmark's arithmetic from made-up runs, and its treatment of contenders that fail or hang."""

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import contenders, processes, throughput
from benchmarks.contenders import Measured, Ours, Peer, Unavailable
from benchmarks.works import WORKS
from parallel_ppo.exits import InputError
from parallel_ppo.machine.resources import read_machine
from tests.conftest import ROOT

NO_ARGUMENTS = argparse.Namespace(rounds=2, warmup=1, timeout=1.0)


class MadeUp:
    """A contender whose iterations take a constant time, after a slow first one."""

    def __init__(self, seconds: float, sha256: str | None = None, problem: str | None = None) -> None:
        self.seconds, self.sha256, self.problem = seconds, sha256, problem

    def measure(self, work: Any, *, iterations: int, cores: int, timeout: float) -> Measured:
        if self.problem:
            raise Unavailable(self.problem)
        return Measured([9.0, *[self.seconds] * (iterations - 1)], 900.0, self.sha256)

    def versions(self) -> dict[str, str]:
        return {"torch": "2.13.0"}


def measured(**given: MadeUp) -> tuple[list[throughput.Row], dict[str, str]]:
    unavailable: dict[str, str] = {}
    found = dict(given)
    rows = throughput._measure("W3", WORKS["W3"], found, unavailable, NO_ARGUMENTS, read_machine())
    return rows, unavailable


def test_contenders_take_turns_and_warm_up_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = measured(ours=MadeUp(1.0), sb3=MadeUp(2.0))
    assert [row["contender"] for row in rows] == ["ours", "sb3", "sb3", "ours"]
    assert [row["steps_per_second"] for row in rows] == [1024.0, 512.0, 512.0, 1024.0]
    assert throughput.ratios(rows, "W3", "sb3") == [2.0, 2.0]


def test_a_contender_that_fails_is_left_out_and_ours_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows, unavailable = measured(ours=MadeUp(1.0), rllib=MadeUp(1.0, problem="no wheel"))
    assert {row["contender"] for row in rows} == {"ours"} and unavailable == {"rllib": "no wheel"}
    with pytest.raises(Unavailable, match="no kernels"):
        measured(ours=MadeUp(1.0, problem="no kernels"))


def test_a_work_that_cannot_run_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OnlyCartPole(MadeUp):
        def measure(self, work: Any, **more: Any) -> Measured:
            self.problem = None if work.env == "CartPole-v1" else "no mujoco"
            return super().measure(work, **more)

    monkeypatch.setattr(throughput, "find", lambda name, stack: OnlyCartPole(1.0))
    command = ["throughput.py", "--work", "W3,W6", "--against", "sb3", "--output-dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    assert throughput.main() == 0
    assert "warning: W6: this checkout cannot be measured: no mujoco" in capsys.readouterr().err
    raw = json.loads((tmp_path / "out" / "throughput.json").read_text())
    assert {run["work"] for run in raw["runs"]} == {"W3"}


def row(contender: str, number: int, rate: float, sha256: str | None = None) -> throughput.Row:
    return {
        "work": "W1", "contender": contender, "round": number, "steps_per_second": rate, "peak_mb": 900.0,
        "load_before": 0.1, "policy_sha256": sha256, "iteration_seconds": [1.0],
    }  # fmt: skip


def test_a_ratio_compares_runs_of_one_round() -> None:
    rows = [
        row("sb3", 1, 100),
        row("ours", 1, 300),
        row("ours", 2, 320),
        row("sb3", 2, 80),
        row("ours", 3, 9),
    ]
    assert throughput.ratios(rows, "W1", "sb3") == [3.0, 4.0]
    assert throughput.conclusions(rows) == [
        "W1  sb3: 90.0 (80.0 to 100.0) steps/s; this checkout is 3.500 (3.000 to 4.000) times as fast in"
        " 2 rounds",
        "W1  ours: 300.0 (9.0 to 320.0) steps/s",
    ]


def test_versions_are_compared_by_their_bits_too() -> None:
    def conclusion(sha256: str) -> str:
        rows = [row("ours", 1, 99, "a"), row("commit:x", 1, 100, sha256), row("ours", 2, 101, "a"),
                row("commit:x", 2, 100, sha256)]  # fmt: skip
        return throughput.conclusions(rows)[1]

    assert conclusion("a").endswith("no clear difference; parameters are bit-identical")
    assert conclusion("b").endswith("no clear difference; parameters differ")


def test_raw_numbers_are_written_without_a_host_name(tmp_path: Path) -> None:
    rows = [row("ours", 1, 300), row("sb3", 1, 100)]
    found: dict[str, Any] = {"ours": MadeUp(1.0), "sb3": MadeUp(1.0)}
    facts = throughput._facts(read_machine(), {"W1": WORKS["W1"]}, found, 1)
    raw, table, picture = throughput.write(tmp_path, facts, rows)
    assert json.loads(raw.read_text())["runs"] == rows
    assert [line["steps_per_second"] for line in csv.DictReader(table.open())] == ["300", "100"]
    assert picture.stat().st_size > 5000
    assert os.uname().nodename not in raw.read_text()


def found(name: str) -> Any:
    with contextlib.ExitStack() as stack:
        return contenders.find(name, stack)


def test_contenders_by_their_names() -> None:
    assert found("ours:a.b=1+c.d=2").settings == ("a.b=1", "c.d=2")
    assert found("sequential").script == "train_timed.py"
    assert found(f"commit:{ROOT}") == Ours(project=ROOT)
    for name in ("sb4", "commit:", "ours:fast"):
        with pytest.raises(InputError, match="unknown contender; expected sequential, commit:REVISION"):
            found(name)
    with pytest.raises(InputError, match="expected a commit of this repository or a checkout's folder"):
        found("commit:no-such-revision")


def test_a_commit_is_checked_out_while_it_is_measured() -> None:
    if not contenders.is_commit("HEAD"):
        pytest.skip("no git history")
    with contextlib.ExitStack() as stack:
        other = contenders.find("commit:HEAD", stack)
        assert isinstance(other, Ours) and other.project != ROOT
        assert (other.project / "train_parallel_timed.py").is_file()
    assert not other.project.exists()


def test_every_peer_has_its_adaptor_and_requirements() -> None:
    for peer in contenders.PEER_NAMES.values():
        assert (contenders.PEERS / peer.adaptor).is_file()
        assert "torch==2.13.0" in (contenders.PEERS / f"{peer.environment}.txt").read_text()


def test_a_refused_benchmark_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (("--against", "sb4"), ("--work", "W0")):
        monkeypatch.setattr(sys, "argv", ["throughput.py", *wrong, "--output-dir", str(tmp_path / "out")])
        with pytest.raises(InputError):
            throughput.main()
        assert not (tmp_path / "out").exists()


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "PEERS", tmp_path)
    (tmp_path / "sb3.txt").write_text("no-such-package-as-this==99\n")

    def failing(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution\n")

    monkeypatch.setattr(contenders.subprocess, "run", failing)
    with pytest.raises(Unavailable, match=r"cannot be installed \(ERROR: No matching distribution\)"):
        Peer("sb3", "sb3.py", "", "stable-baselines3").prepare()


# --- processes ----------------------------------------------------------------------------------------------


def run(code: str, **options: Any) -> processes.Outcome:
    given: dict[str, Any] = {"timeout": 30.0, "wanted_lines": None} | options
    return processes.run([sys.executable, "-c", code], cwd=ROOT, environment=dict(os.environ), **given)


def test_a_failure_is_reported_by_its_last_line() -> None:
    assert run("raise ValueError('no such game')").problem == "exit code 1: ValueError: no such game"


def test_enough_lines_end_a_peer_its_children_and_its_memory() -> None:
    """Files of torch and semaphores outlive a killed process."""
    code = (
        "import mmap, os, subprocess, sys, tempfile, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "descriptor, name = tempfile.mkstemp(dir='/dev/shm'); os.ftruncate(descriptor, 4096)\n"
        "mapped = mmap.mmap(descriptor, 4096); os.close(descriptor)\n"
        "print(child.pid, flush=True)\nprint(name, flush=True)\ntime.sleep(600)"
    )
    outcome = run(code, wanted_lines=2)
    assert outcome.problem is None and len(outcome.lines) == 2
    child = int(outcome.lines[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not Path(outcome.lines[1].strip()).exists()


def test_a_hanging_peer_is_ended() -> None:
    assert run("import time; time.sleep(600)", timeout=1.0).problem == "did not finish within 1 s"


@pytest.mark.slow
def test_memory_counts_the_whole_tree() -> None:
    code = (
        'import subprocess, sys, time\nhold = \'import time; held = bytearray(b"1" * 100_000_000); print(1,'
        " flush=True); time.sleep(600)'\nchild = subprocess.Popen([sys.executable, '-c', hold],"
        " stdout=subprocess.PIPE)\nchild.stdout.readline(); time.sleep(3); print('done', flush=True)"
    )
    assert 100 < run(code, wanted_lines=1).peak_mb < 400


@pytest.mark.slow
@pytest.mark.multiprocess
def test_this_checkout_is_measured() -> None:
    work = WORKS["W3"]._replace(num_steps=16, batch_size=128)
    outcome = Ours().measure(work, iterations=3, cores=2, timeout=120)
    assert len(outcome.seconds) == 3 and all(seconds > 0 for seconds in outcome.seconds)
    with pytest.raises(Unavailable, match="does not divide"):
        Ours().measure(work._replace(batch_size=100), iterations=1, cores=2, timeout=120)
