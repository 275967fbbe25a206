import json
import sys
from pathlib import Path

import pandas
import pytest
from run_writer import write_run

from benchmarks import scaling as benchmark
from benchmarks import throughput
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration, Pieces
from parallel_ppo.machine.iteration_simulation import Costs
from parallel_ppo.reports import scaling
from parallel_ppo.reports.runs import load_run
from parallel_ppo.reports.scaling import SizedRun
from parallel_ppo.reports.scaling_costs import measured_costs
from parallel_ppo.reports.scaling_report import build_report, write_report
from parallel_ppo.settings.layers import load_settings
from tests.conftest import ROOT

PIECES = Pieces(slices=4, lanes=8, updates=12)


def sized(tmp_path, sizes, *, repeats=2, **options):
    return [
        SizedRun(load_run(write_run(tmp_path / f"w{size}_r{repeat}", workers=size, **options)), size, repeat)
        for repeat in range(1, repeats + 1)
        for size in sizes
    ]


def report_of(runs, *, warmup=2, cores=2):
    return build_report(runs, warmup=warmup, cores=cores, pieces=PIECES)


def test_the_smallest_size_predicts_the_next(tmp_path):
    report = report_of(sized(tmp_path, [1, 2]))
    first, second = report.summaries
    assert first.predicted_fps == pytest.approx(first.fps, rel=1e-3)
    assert second.fps_low <= second.predicted_fps <= second.fps_high
    assert any("5.0" in line and "does not divide" in line for line in report.sentences), "0.4 of 8 seconds"
    assert any("within the spread" in line for line in report.sentences)
    assert any("EXTRAPOLATION to 128" in line for line in report.sentences)
    assert "With 2 workers limited by the arithmetic of the gradients" in report.sentences[0]


def test_sizes_beyond_the_cores_are_predicted_to_gain_nothing(tmp_path):
    report = report_of(sized(tmp_path, [1, 2, 4], noise=0.0))
    assert [summary.has_cores for summary in report.summaries] == [True, True, False]
    assert report.summaries[2].predicted_fps == pytest.approx(report.summaries[1].predicted_fps)
    assert any("4 workers are more than the physical cores" in line for line in report.sentences)


def test_extrapolation_at_this_shape_is_never_above_the_one_with_work_enough(tmp_path):
    report = report_of(sized(tmp_path, [1, 2]))
    slower = Iteration(10.0, 40.0, 0.4, Pieces(512, 512, 12), workers=3, cores=3)
    for rows in (report.extrapolation, scaling.extrapolate(slower, 2048)):
        assert all(row.fps_this_shape <= row.fps for row in rows)
    assert report.extrapolation[-1].workers == 128
    assert report.extrapolation[-1].speedup < 8.0 / 0.4 * 1.05


def test_tables_load_in_pandas(tmp_path):
    runs = sized(tmp_path, [1, 2])
    write_report(report_of(runs), runs, tmp_path / "out")
    per_run = pandas.read_csv(tmp_path / "out" / "per_run.csv")
    summary = pandas.read_csv(tmp_path / "out" / "summary.csv")
    assert list(per_run.world_size) == [1, 2, 1, 2]
    assert (per_run.iterations == 10).all()
    assert summary.speedup[1] == pytest.approx(summary.fps[1] / summary.fps[0])
    assert summary.efficiency[1] == pytest.approx(summary.speedup[1] / 2)
    assert len(list((tmp_path / "out" / "logs").glob("*.jsonl"))) == 4
    content = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert len(content["sizes"]) == 2
    assert (tmp_path / "out" / "plots.png").stat().st_size > 10_000


def test_no_link_leads_what_a_benchmark_writes_elsewhere(tmp_path, monkeypatch):
    """A folder that holds anything is refused; and what is written later follows no link either."""
    (tmp_path / "victim").write_text("precious")
    folder = tmp_path / "out"
    (folder / "logs").mkdir(parents=True)
    tables = ("per_run.csv", "per_run.json", "summary.csv", "summary.json")
    for name in ("config.yaml", *tables, "report.txt", "plots.png", "logs/w1_r1.jsonl"):
        (folder / name).symlink_to(tmp_path / "victim")
    for module, arguments in ((benchmark, ["--env-id", "CartPole-v1"]), (throughput, ["--against", ""])):
        monkeypatch.setattr(sys, "argv", ["x", *arguments, "--output-dir", str(folder)])
        with pytest.raises(InputError, match="is not empty"):
            module.main()
    runs = sized(tmp_path, [1], repeats=1)
    write_report(report_of(runs), runs, folder)
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (folder / "report.txt").is_symlink()


def test_different_bits_are_said(tmp_path):
    runs = [
        SizedRun(load_run(write_run(tmp_path / "a", workers=1)), 1, 1),
        SizedRun(load_run(write_run(tmp_path / "b", workers=2, learning="other")), 2, 1),
    ]
    assert any("did NOT learn the same bits" in line for line in report_of(runs).sentences)


def test_a_busy_machine_is_said(tmp_path):
    runs = sized(tmp_path, [1, 2], repeats=1)
    runs[1].run.columns["cpu_percent"][:] = 90.0
    report = report_of(runs)
    assert "BUSY" in report.subtitle
    assert any("other programs used the machine" in line for line in report.sentences)


def test_only_warm_up_is_an_error(tmp_path):
    with pytest.raises(InputError, match="--total-iters"):
        report_of(sized(tmp_path, [1], repeats=1, iterations=2))


def flags(*arguments):
    return benchmark._parser().parse_args(arguments)


def test_the_benchmark_chooses_the_network():
    assert benchmark.checked_settings(flags("--env-id", "CartPole-v1")).training.policy == "mlp"
    assert benchmark.checked_settings(flags()).training.policy == "impala"


@pytest.mark.parametrize(
    "wrong", [("--env-id", "NoSuch-v0"), ("--env-id", "CartPole-v1", "--policy", "impala")]
)
def test_a_refused_benchmark_leaves_no_folder(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(sys, "argv", ["scaling.py", *wrong, "--output-dir", str(tmp_path / "out")])
    with pytest.raises(InputError):
        benchmark.main()
    assert not (tmp_path / "out").exists()


def trace_of(folder: Path, workers: int, lane: int) -> Path:
    """Lanes of `lane` us with gaps of a tenth, alternating over the workers; the first iteration is warm-up,
    and slower.
    """
    events = []

    def add(name, worker, start, duration, **arguments):
        event = {"cat": "task", "name": name, "tid": worker + 1, "ts": start, "dur": duration}
        events.append(event | {"args": arguments})

    for iteration in (0, 1):
        duration = lane if iteration else 9 * lane
        for index in range(8):
            place = {"iteration": iteration, "epoch": 0, "minibatch": index // 4}
            add("gradient", index % workers, index // workers * 11 * duration // 10, duration, **place)
        for worker in range(workers):
            add("collect", worker, 0, 50 * duration, iteration=iteration)
            add("reduce", worker, 0, 300 // workers, first_block=worker)
    path = folder / "trace-1.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_costs_are_read_from_traces_and_simulated_beside_what_was_measured(tmp_path):
    runs = sized(tmp_path, [1, 2])
    alone, together = (
        trace_of(item.run.path, item.world_size, lane)
        for item, lane in zip(runs[:2], (1000, 1200), strict=True)
    )
    smallest = Iteration(1.0, 2.0, 0.1, PIECES, workers=1, cores=2)
    costs, shared = measured_costs(smallest, [alone], [together], 1)
    assert (costs.slices, set(costs.lanes), len(costs.lanes)) == ((0.05,), {0.001}, 8)
    assert (costs.claim, costs.reduce) == (pytest.approx(0.0001), pytest.approx(0.0003))
    assert (set(shared.slices), set(shared.lanes), len(shared.lanes)) == ({0.06}, {0.0012}, 8)
    assert (shared.claim, shared.reduce) == (pytest.approx(0.00012), pytest.approx(0.0003))
    assert shared.rest == costs.rest
    assert measured_costs(smallest, [], [together], 1) is None
    assert measured_costs(smallest, [alone], [], 1) == (costs, costs)
    lines = report_of(runs, warmup=1).sentences
    assert sum(line.startswith("Simulated with ") for line in lines) == 2
    assert sum("SIMULATED efficiency, not measured" in line for line in lines) == 2


def test_the_simulation_of_many_cores_has_their_shape_and_scales_the_coordinator_with_its_samples():
    shape = load_settings(file=ROOT / "config" / "ppo_many_cores.yaml", flags={}).shape
    assert shape.steps_per_iteration == scaling.MANY_CORES_STEPS
    lanes, updates = shape.num_slices * len(shape.lane_sizes), shape.num_epochs * shape.num_minibatches
    assert (shape.num_slices, lanes, updates) == scaling.MANY_CORES[:3]
    costs = Costs(slices=(0.05,), lanes=(0.001,), claim=1e-4, reduce=3e-4, rest=0.1)
    few, many = (
        scaling.simulated(costs, costs, [], PIECES, steps=steps, cores=2)
        for steps in (4096, scaling.MANY_CORES_STEPS)
    )
    assert few[0] == many[0], "this shape"
    assert few[1] != many[1], "16 times the coordinator's work, and just as much"
