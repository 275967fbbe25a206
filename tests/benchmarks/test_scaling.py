"""The scaling benchmark: what it measured, and nothing else."""

import json
import sys

import pandas
import pytest

from benchmarks import scaling as benchmark
from benchmarks import throughput
from benchmarks.scaling import SizedRun, build_report, write_report
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Pieces
from parallel_ppo.reports.document import as_text
from parallel_ppo.reports.runs import load_run
from tests.reports.run_copies import copy_run, edit_rows

pytestmark = pytest.mark.usefixtures("real_run")
PIECES = Pieces(slices=4, microbatches=8, updates=12)


def sized(tmp_path, sizes, *, repeats=2, **options):
    return [
        SizedRun(
            load_run(copy_run(tmp_path / f"w{size}_r{repeat}", workers=size, seed=1, **options)), size, repeat
        )
        for repeat in range(1, repeats + 1)
        for size in sizes
    ]


def report_of(runs, *, warmup=2, cores=2):
    return build_report(runs, warmup=warmup, cores=cores, pieces=PIECES)


def test_only_measured_numbers_are_reported(tmp_path):
    runs = sized(tmp_path, [1, 2, 4], noise=0.0)
    report = report_of(runs)
    first, second, third = report.data["sizes"]
    assert first["fps"] == pytest.approx(2048 / 8) and first["t_learn"] == pytest.approx(6.0)
    assert second["speedup"] == pytest.approx(8 / 4.2) and second["efficiency"] == pytest.approx(4 / 4.2)
    assert [row["has_cores"] for row in (first, second, third)] == [True, True, False]
    assert report.notes[0].startswith("With 2 workers limited by the arithmetic of the gradients")
    assert "4 workers are more than the 2 physical cores." in report.notes
    assert "redicted" not in as_text(report) and "EXTRAPOL" not in as_text(report)
    assert report.headline == "CartPole-v1: 488 steps/s with 2 workers, 1.90x"


def test_tables_load_in_pandas(tmp_path):
    runs = sized(tmp_path, [1, 2])
    write_report(report_of(runs), runs, tmp_path / "out")
    per_run = pandas.read_csv(tmp_path / "out" / "per_run.csv")
    summary = pandas.read_csv(tmp_path / "out" / "summary.csv")
    assert list(per_run.world_size) == [1, 2, 1, 2]
    assert (per_run.iterations == 10).all()
    assert summary.speedup[1] == pytest.approx(summary.fps[1] / summary.fps[0])
    assert (summary.fps_low <= summary.fps).all() and (summary.fps <= summary.fps_high).all()
    assert len(list((tmp_path / "out" / "logs").glob("*.jsonl"))) == 4
    content = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert len(content["sizes"]) == 2 and (content["cores"], content["warmup"]) == (2, 2)
    assert (tmp_path / "out" / "plots.png").stat().st_size > 10_000


def test_no_link_leads_what_a_benchmark_writes_elsewhere(tmp_path, monkeypatch):
    """A folder that holds anything is refused; and what is written later follows no link either."""
    (tmp_path / "victim").write_text("precious")
    folder = tmp_path / "out"
    (folder / "logs").mkdir(parents=True)
    tables = ("per_run.csv", "summary.csv", "summary.json")
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


def test_different_bits_and_a_busy_machine_are_warnings(tmp_path):
    paths = [copy_run(tmp_path / name, workers=size, learning=name) for name, size in (("a", 1), ("b", 2))]
    edit_rows(paths[1], cpu_percent=90.0)
    report = report_of([SizedRun(load_run(path), size, 1) for path, size in zip(paths, (1, 2), strict=True)])
    assert "other programs used the machine" in report.warnings[0]
    assert "NOT bit-identical" in report.warnings[1]


def test_only_warm_up_is_an_error(tmp_path):
    with pytest.raises(InputError, match="--total-iters"):
        report_of(sized(tmp_path, [1], repeats=1, iterations=2))


def flags(*arguments):
    return benchmark.build_parser().parse_args(arguments)


def test_the_benchmark_chooses_the_network():
    assert benchmark.checked_settings(flags("--env-id", "CartPole-v1")).training.policy == "mlp"
    assert benchmark.checked_settings(flags()).training.policy == "impala"
