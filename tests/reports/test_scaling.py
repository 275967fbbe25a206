import json

import numpy as np
import pandas
import pytest
from run_writer import write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports import scaling
from parallel_ppo.reports.runs import load_run
from parallel_ppo.reports.scaling import Model, Shape, busiest, seconds_at
from parallel_ppo.reports.scaling_report import SizedRun, build_report, write_report
from parallel_ppo.reports.statistics import Amdahl


def sized(tmp_path, sizes, *, repeats=2, **options):
    return [
        SizedRun(load_run(write_run(tmp_path / f"w{size}_r{repeat}", workers=size, **options)), size, repeat)
        for repeat in range(1, repeats + 1)
        for size in sizes
    ]


def test_the_coordinator_share_predicts_the_next_size(tmp_path):
    report = build_report(sized(tmp_path, [1, 2]), warmup=2, physical_cores=2)
    first, second = report.summaries
    assert first.predicted_fps == pytest.approx(first.fps)
    assert second.fps_low <= second.predicted_fps <= second.fps_high
    assert report.model.amdahl.serial_share == pytest.approx(0.4 / 8.01, rel=0.02)
    assert "coordinator" in report.model.source
    assert any("within the spread" in line for line in report.sentences)
    assert any("EXTRAPOLATION to 128" in line for line in report.sentences)


def test_three_sizes_are_fitted_and_sizes_beyond_the_cores_are_not(tmp_path):
    report = build_report(sized(tmp_path, [1, 2, 4, 8], noise=0.0), warmup=2, physical_cores=4)
    assert [summary.fitted for summary in report.summaries] == [True, True, True, False]
    assert report.model.source == "fitted to 3 measured sizes"
    assert report.model.amdahl.serial == pytest.approx(0.41, rel=0.01), "coordinator and synchronisation"
    assert report.model.amdahl.parallel == pytest.approx(7.6, rel=0.01)
    assert any("8 workers are more than the physical cores" in line for line in report.sentences)


def test_without_the_coordinator_column_one_size_extrapolates_nothing(tmp_path):
    runs = sized(tmp_path, [1], repeats=1)
    del runs[0].run.columns["t_coordinator"]
    report = build_report(runs, warmup=1, physical_cores=1)
    assert report.model is None
    assert report.extrapolation == []
    write_report(report, runs, tmp_path / "out")


def test_work_in_pieces_is_dealt_to_the_busiest_worker():
    assert busiest(4, 1) == 1.0
    assert busiest(4, 3) == 0.5
    assert busiest(4, 100) == 0.25
    phases = {"t_iter": 10.0, "t_rollout": 4.0, "t_coordinator": 1.0}
    shape = Shape(num_slices=4, num_lanes=16)
    assert seconds_at(1, phases, base=1, shape=shape) == pytest.approx(10.0)
    assert seconds_at(2, phases, base=1, shape=shape) == pytest.approx(1 + 2 + 2.5)
    assert seconds_at(128, phases, base=1, shape=shape) == pytest.approx(1 + 1 + 5 / 16)


def test_the_shape_follows_the_defaults_of_the_design(tmp_path):
    run = load_run(write_run(tmp_path / "a", num_envs=32))
    assert scaling.shape_of(run) == Shape(num_slices=4, num_lanes=8)


def test_extrapolation_at_this_shape_is_never_above_the_one_with_work_enough(tmp_path):
    report = build_report(sized(tmp_path, [1, 2]), warmup=2, physical_cores=2)
    slower = Model(Amdahl(serial=0.4, parallel=50.0), "by hand", 2048)
    for rows in (report.extrapolation, scaling.extrapolate(slower, report.summaries, shape=Shape(512, 512))):
        assert all(row.fps_this_shape <= row.fps for row in rows)
    assert report.extrapolation[-1].workers == 128
    assert report.extrapolation[-1].speedup < 1 / report.model.amdahl.serial_share


def test_tables_load_in_pandas(tmp_path):
    runs = sized(tmp_path, [1, 2])
    write_report(build_report(runs, warmup=2, physical_cores=2), runs, tmp_path / "out")
    per_run = pandas.read_csv(tmp_path / "out" / "per_run.csv")
    summary = pandas.read_csv(tmp_path / "out" / "summary.csv")
    assert list(per_run.world_size) == [1, 2, 1, 2]
    assert (per_run.iterations == 10).all()
    assert summary.speedup[1] == pytest.approx(summary.fps[1] / summary.fps[0])
    assert summary.efficiency[1] == pytest.approx(summary.speedup[1] / 2)
    assert len(list((tmp_path / "out" / "logs").glob("*.jsonl"))) == 4
    content = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert len(content["sizes"]) == 2
    assert np.isfinite(content["model"]["serial_share"])
    assert (tmp_path / "out" / "plots.png").stat().st_size > 10_000


def test_different_bits_are_said(tmp_path):
    runs = [
        SizedRun(load_run(write_run(tmp_path / "a", workers=1)), 1, 1),
        SizedRun(load_run(write_run(tmp_path / "b", workers=2, learning="other")), 2, 1),
    ]
    report = build_report(runs, warmup=1, physical_cores=2)
    assert any("did NOT learn the same bits" in line for line in report.sentences)


def test_a_busy_machine_is_said(tmp_path):
    runs = sized(tmp_path, [1, 2], repeats=1)
    runs[1].run.columns["cpu_percent"][:] = 90.0
    report = build_report(runs, warmup=1, physical_cores=2)
    assert "BUSY" in report.subtitle
    assert any("other programs used the machine" in line for line in report.sentences)


def test_only_warm_up_is_an_error(tmp_path):
    runs = sized(tmp_path, [1], repeats=1, iterations=2)
    with pytest.raises(InputError, match="--total-iters"):
        build_report(runs, warmup=2, physical_cores=1)
