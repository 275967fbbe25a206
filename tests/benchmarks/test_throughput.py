"""The benchmark's arithmetic and reports from made-up runs, and how it treats contenders that fail or
hang.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import collection, contenders, processes, throughput, throughput_report, versions
from benchmarks.contenders import CONTENDERS, Unavailable
from benchmarks.works import COLLECTION, WORKS, mega_flops
from parallel_ppo.exits import InputError
from parallel_ppo.machine.resources import read_machine
from tests.conftest import ROOT


def made_up_results() -> dict[str, Any]:
    def runs(*rates: float) -> dict[str, Any]:
        return {
            "runs": [{"steps_per_second": rate, "seconds": [1.0], "peak_mb": 900.0} for rate in rates],
            "versions": {"torch": "2.13.0"},
        }

    return throughput_report.facts(read_machine(), WORKS["W1"]) | {
        "contenders": {"ours": runs(300, 320, 310), "sb3": runs(100, 80, 100)},
        "unavailable": {"rllib": "cannot be installed (no wheel)"},
        "sgemm_gflops": [300.0, 310.0, 290.0],
        "num_cores": 2,
        "mega_flops_per_step": mega_flops(WORKS["W1"]),
        "warmup": 1,
    }


def test_what_a_step_costs() -> None:
    assert mega_flops(WORKS["W1"]) == pytest.approx(796, abs=1)
    assert mega_flops(WORKS["W1"]._replace(epochs=0)) == pytest.approx(61.2, abs=0.1)


def test_ratios_compare_neighbours_in_time() -> None:
    rows = throughput_report.rows_of(made_up_results())
    assert [row["contender"] for row in rows] == ["ours", "sb3"]
    assert rows[1]["ours is faster by"] == "3.10 (3.00-4.00)"
    assert rows[0]["of sgemm"].startswith("82.2%")


def test_the_report_has_all_its_files_and_no_host(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = throughput_report.write(tmp_path, made_up_results())
    assert [path.suffix for path in paths] == [".json", ".md", ".png"]
    assert all(path.stat().st_size > 0 for path in paths)
    page = paths[1].read_text()
    assert "3.10 (3.00-4.00)" in page and "Left out: rllib: cannot be installed" in page
    assert json.loads(paths[0].read_text())["contenders"]["ours"]["runs"][0]["steps_per_second"] == 300
    assert os.uname().nodename not in page + paths[0].read_text()


def test_the_report_of_collection(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    games = {"coinrun": [{"ours": 1000.0, "bare": 1050.0}], "maze": [{"ours": 1000.0, "bare": 1070.0}]}
    facts = throughput_report.facts(read_machine(), COLLECTION)
    throughput_report.write(tmp_path, facts | {"games": games, "num_workers": 2})
    assert "+5.0%" in (tmp_path / "throughput.md").read_text()
    assert "+6.0%" in (tmp_path / "throughput.md").read_text()


def test_every_contender_has_its_adaptor_and_requirements() -> None:
    for contender in CONTENDERS.values():
        if isinstance(contender, contenders.Peer):
            assert (contenders.PEERS / contender.adaptor).is_file()
            assert "torch==2.13.0" in (contenders.PEERS / f"{contender.environment}.txt").read_text()
        else:
            assert (ROOT / contender.script).is_file()


def test_unknown_contenders_are_refused() -> None:
    with pytest.raises(InputError, match="sb4"):
        throughput._take_part("sb4")


@pytest.mark.parametrize(
    "wrong", [("--against", "sb4"), ("--against", "", "--work", "W3", "--batch-size", "100")]
)
def test_a_refused_benchmark_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong, capsys
) -> None:
    monkeypatch.setattr(throughput, "_sgemm", lambda cores: 1.0)
    monkeypatch.setattr(sys, "argv", ["throughput.py", *wrong, "--output-dir", str(tmp_path / "out")])
    with pytest.raises(InputError):
        throughput.main()
    assert not (tmp_path / "out").exists()


def test_a_peer_that_cannot_be_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(contenders, "PEERS", tmp_path)
    (tmp_path / "sb3.txt").write_text("no-such-package-as-this==99\n")

    def failing(command: list[str], **options: Any) -> Any:
        import subprocess

        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution\n")

    monkeypatch.setattr(contenders.subprocess, "run", failing)
    names, unavailable = throughput._take_part("sb3")
    assert names == ["ours", "sb3"]
    assert unavailable == {"sb3": "cannot be installed (ERROR: No matching distribution)"}


# --- processes ----------------------------------------------------------------------------------------------


def run(code: str, **options: Any) -> processes.Outcome:
    given: dict[str, Any] = {"timeout": 30.0, "wanted_lines": None} | options
    return processes.run([sys.executable, "-c", code], cwd=ROOT, environment=dict(os.environ), **given)


def test_a_failure_is_told_by_its_last_line() -> None:
    assert run("raise ValueError('no such game')").problem == "exit code 1: ValueError: no such game"


def test_enough_lines_end_a_peer_and_its_children() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nprint('second', flush=True)\ntime.sleep(600)"
    )
    outcome = run(code, wanted_lines=2)
    assert outcome.problem is None and len(outcome.lines) == 2
    child = int(outcome.lines[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_peer_that_is_ended_leaves_no_shared_memory() -> None:
    """Files of torch and semaphores outlive a killed process."""
    code = (
        "import mmap, os, tempfile, time\n"
        "descriptor, name = tempfile.mkstemp(dir='/dev/shm'); os.ftruncate(descriptor, 4096)\n"
        "mapped = mmap.mmap(descriptor, 4096); os.close(descriptor)\n"
        "print(name, flush=True); time.sleep(600)"
    )
    outcome = run(code, wanted_lines=1)
    assert outcome.problem is None and not Path(outcome.lines[0].strip()).exists()


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
@pytest.mark.procgen
def test_collection_is_measured_beside_bare_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "PROCGEN_GAMES", ("coinrun",))
    work = COLLECTION._replace(num_envs=16, num_steps=4)
    results = collection.measure_collection(work, repeats=2, machine=read_machine())
    assert [len(runs) for runs in results["games"].values()] == [2]
    assert all(run["ours"] > 0 and run["bare"] > 0 for run in results["games"]["coinrun"])


@pytest.mark.slow
@pytest.mark.multiprocess
def test_our_own_trainer_is_measured() -> None:
    work = WORKS["W3"]._replace(num_steps=16, batch_size=128)
    measured = contenders.measure("ours", work, iterations=3, cores=2, timeout=120)
    assert len(measured.seconds) == 3 and all(seconds > 0 for seconds in measured.seconds)
    with pytest.raises(Unavailable, match="does not divide"):
        contenders.measure("ours", work._replace(batch_size=100), iterations=1, cores=2, timeout=120)


def test_versions_take_turns_and_every_round_has_its_ratio(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    order = []

    def measured(
        contender: Any, work: Any, iterations: int, timeout: float, project: Path
    ) -> contenders.Measured:
        order.append(project)
        return contenders.Measured([9.0, *[1.0 if project == ROOT else 2.0] * (iterations - 1)], 0.0)

    monkeypatch.setattr(versions, "measure_ours", measured)
    rows = versions.compare(Path("/before"), WORKS["W3"], rounds=2, iterations=3, warmup=1, timeout=1.0)
    assert order == [Path("/before"), ROOT, ROOT, Path("/before")]
    assert rows == [{"before": 512.0, "now": 1024.0}] * 2
