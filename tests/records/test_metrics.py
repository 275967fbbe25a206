"""Logs: no iteration twice, none missing, whatever was interrupted."""

import json
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from parallel_ppo.features.episodes import RECENT
from parallel_ppo.records import metrics
from parallel_ppo.records.metrics import JsonlLog, TensorBoardLog
from parallel_ppo.storage.json_lines import read_records
from parallel_ppo.training.recorder import is_best_yet
from tests.conftest import train_here


def iterations(path):
    return [record["iteration"] for record in read_records(path)]


def test_a_torn_tail_and_what_lies_beyond_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonlLog(path, 0)
    log.write([{"iteration": number, "x": 0.1} for number in range(1, 6)])
    log.close()
    with open(path, "a") as file:
        file.write('{"iteration": 6, "x"')
    again = JsonlLog(path, 3)
    assert [record["iteration"] for record in again.earlier()] == [1, 2, 3]
    again.write([{"iteration": 4}])
    again.close()
    assert iterations(path) == [1, 2, 3, 4]
    assert path.read_bytes().endswith(b'{"iteration": 4}\n')


def test_a_log_that_was_deleted_under_a_run_is_reported(tmp_path):
    log = JsonlLog(tmp_path / "metrics.jsonl", 0)
    log.sync()
    log.path.unlink()
    with pytest.raises(FileNotFoundError, match="was deleted during the run"):
        log.sync()


def test_a_long_log_is_cut_without_being_in_memory(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(
        b"".join(b'{"iteration": %d, "return": 1.5, "length": 20}\n' % n for n in range(100_000))
    )
    tracemalloc.start()
    log = JsonlLog(path, 90_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(1 for _ in log.earlier()) == 90_001
    log.write([{"iteration": 90_001}])
    assert sum(1 for _ in log.earlier()) == 90_001, "new records are not earlier ones"
    log.close()
    assert peak < 8_000_000


@pytest.mark.parametrize("line", ["{broken", "[1]", '{"iteration": "2"}', "{}", "\udcff", "[" * 100_000])
def test_a_damaged_line_costs_only_itself(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"iteration": 1}}\n{line}\n{{"iteration": 2}}\n', errors="surrogateescape")
    assert [record["iteration"] for record in JsonlLog(path, 9).earlier()] == [1, 2]


def test_what_a_full_disk_refuses_is_written_later(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    log = JsonlLog(path, 0)
    log.write([{"iteration": 1}])
    real = os.write
    monkeypatch.setattr(
        os, "write", lambda descriptor, data: real(descriptor, data[:7])
    )  # as a full disk does
    for number in (2, 3):
        with pytest.raises(OSError, match="No space left"):
            log.write([{"iteration": number}])
        assert iterations(path) == [1] and path.read_bytes().endswith(b"}\n")
    monkeypatch.setattr(os, "write", real)
    log.sync()
    log.close()
    assert iterations(path) == [1, 2, 3]


def test_tensorboard_is_rebuilt_without_doubles(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    records = [
        {
            "iteration": n,
            "steps_global": n * 10,
            "loss": 0.5,
            "huge": 10**400,
            "text": "x",
            "wall_time": n * 1.0,
        }
        for n in (1, 2)
    ]
    first = TensorBoardLog(tmp_path, [], [], 0.0)
    first.add(records, [])
    first.close()
    episodes = [{"iteration": 1, "step": 5, "return": 1.0, "length": 3}, {"step": "x"}]
    second = TensorBoardLog(tmp_path, records[:1], episodes, 1000.0)
    second.add(records[1:], [])
    second.close()
    [file] = tmp_path.glob("events.*")
    drawn = [
        (event.wall_time, event.step, value.tag)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    names = {"episodes/return": 5, "episodes/length": 5, "learning/loss": 10, "machine/wall_time": 10}
    assert {(name, step) for time, step, name in drawn if time == 1001.0} == set(names.items())
    assert {(step, name) for time, step, name in drawn if time == 1002.0} == {
        (20, "learning/loss"), (20, "machine/wall_time")
    }  # fmt: skip
    assert json.dumps(records[0])  # untouched


def test_tensorboard_shows_columns_in_groups():
    names = (
        "episode_return_mean",
        "episodes",
        "eval_gap",
        "entropy",
        "t_learn",
        "idle_update",
        "fps_mean",
        "rss_mb",
    )
    groups = [metrics.tag(name).split("/")[0] for name in names]
    assert groups == ["episodes", "episodes", "evaluation", "learning", "time", "time", "speed", "machine"]
    assert all(metrics.tag(name).endswith(f"/{name}") for name in names), "the names stay"


def test_the_best_checkpoint_is_the_newest_of_the_best():
    """Five lucky first episodes at the maximum once kept an untrained policy as the best for ever."""
    lucky, full = np.full(5, 10.0), np.full(RECENT, 10.0)
    assert is_best_yet(lucky[:0], None) == (True, None)
    assert is_best_yet(lucky, None) == (True, None)
    assert is_best_yet(full * 0.3, None) == (True, 3.0)
    assert is_best_yet(full * 0.2, 3.0) == (False, 3.0)
    assert is_best_yet(full, 10.0) == (True, 10.0)
    assert is_best_yet(lucky, 3.0) == (False, 3.0)


def test_the_best_of_a_run_is_its_best_full_window(tmp_path):
    """9 episodes an iteration, all drawn from one distribution, saved every fourth: windows that are not
    full vary most.
    """
    chosen = ["--env", "tests.envs.sample_envs:Peculiar-v0", "--num-envs", "4", "--n-steps", "16",
              "--batch-size", "64", "--n-epochs", "1", "--learning-rate", "1e-6", "--total-timesteps", "1024",
              "--seed", "8", "--set", "logging.checkpoint_iterations=4"]  # fmt: skip
    run = train_here(tmp_path / "run", *chosen)
    first, second, third, fourth = run.metrics[3::4]
    assert second["episodes"] < RECENT <= third["episodes"]
    lucky = max(record["episode_return_mean"] for record in (first, second))
    assert lucky > third["episode_return_mean"] > fourth["episode_return_mean"]
    best = (tmp_path / "run" / "checkpoints" / "best").resolve()
    assert best.name == f"step_{third['steps_global']}"
    assert run.summary["best_return"] == pytest.approx(third["episode_return_mean"])


def test_memory_is_looked_at_seldom_where_looking_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def slow(pid: int) -> int:
        looked.append(pid)
        time.sleep(0.03)  # 0.5% of 6 s
        return 10_000_000

    monkeypatch.setattr(metrics, "proportional_bytes", slow)
    meter = metrics.ResourceMeter()
    for now in (0.0, 2.5, 5.0):
        meter.sample(now, [])
    assert len(looked) == 1 and meter.rss_mb == 10.0
    assert meter.sampled_at == 5.0 and meter.cpu_wait_percent is not None, "CPU time costs little"
    meter.sample(5.5, [], is_last=True)
    assert len(looked) == 2
    meter.sample(50.0, [])
    assert len(looked) == 3


def test_stolen_time_is_a_share_of_the_wanted_time(monkeypatch):
    looks = iter([(1000, 50), (1060, 70), (1060, 70)])
    monkeypatch.setattr(metrics, "ticks_of_all_cpus", lambda: next(looks))
    meter, seen = metrics.ResourceMeter(), []
    for second in range(3):
        meter.sample(second, [], is_last=True)
        seen.append(meter.cpu_steal_percent)
    assert seen == [None, 25.0, 0.0]
    monkeypatch.undo()
    assert metrics.ticks_of_all_cpus() >= (1, 0)


def test_waiting_for_a_core_is_not_sleeping():
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os, time; os.sched_setaffinity(0, {{{cpu}}}); print(1, flush=True)\nwhile True: pass"
    sleep = "import time; print(1, flush=True); time.sleep(60)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in (spin, spin, sleep)
    ]
    try:
        for process in processes:
            process.stdout.readline()
        meter = metrics.ResourceMeter()
        began = time.monotonic()
        meter.sample(began, [process.pid for process in processes])
        assert meter.cpu_wait_percent is None
        time.sleep(0.5)
        meter.sample(time.monotonic(), [process.pid for process in processes], is_last=True)
        assert meter.cpu_wait_percent > 60, "two that want one core"
        before = [metrics.seconds_without_core(process.pid) for process in processes]
        time.sleep(0.3)
        waited = [
            metrics.seconds_without_core(process.pid) - was
            for process, was in zip(processes, before, strict=True)
        ]
        assert sum(waited[:2]) > 0.2 and waited[2] < 0.05
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_column_name_that_is_no_text_does_not_end_a_resume(tmp_path):
    log = TensorBoardLog(tmp_path, [{"steps_global": 1, "x\udfff": 2}], [], 0.0)
    log.add([{"steps_global": 2, "loss": 0.5}], [])
    log.close()
