"""The simulation of an iteration: what must hold whatever was measured."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import iteration_simulation
from benchmarks.iteration_simulation import Costs, costs_of, efficiencies, measured_costs, simulated_seconds
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration, Pieces
from parallel_ppo.records.trace import Trace
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.training.worker_count import pieces_of
from parallel_ppo.workers.optimizer_steps import STAGE_NAMES
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, Microbatch, Span, Task

PIECES = Pieces(slices=4, microbatches=16, updates=8)


def seconds(costs: Costs, workers: int, cores: int | None = None, pieces: Pieces = PIECES) -> float:
    return simulated_seconds(costs, pieces, workers=workers, cores=cores or workers)


def test_one_worker_takes_as_long_as_it_was_measured_to() -> None:
    measured = Iteration(4.2, 6.5, 0.3, PIECES, workers=1, cores=2)
    costs = costs_of(measured, slices=[1.0, 1.0], microbatches=[0.04], claim=0.0, reduce=0.01)
    assert seconds(costs, 1, 2) == pytest.approx(measured.total)


def test_equal_pieces_are_dealt_whole_and_the_rest_does_not_divide() -> None:
    costs = Costs((1.0,), (0.04,), 0.01, 0.08, 0.5)
    for workers, slices, microbatches in ((2, 2, 8), (3, 2, 6), (16, 1, 1), (64, 1, 1)):
        expected = 0.5 + slices * 1.0 + 8 * (microbatches * 0.05 + 0.08 / workers)
        assert seconds(costs, workers) == pytest.approx(expected)


def test_more_workers_than_cores_share_them() -> None:
    costs = Costs((1.0,), (0.04,), 0.0, 0.0, 0.0)
    assert seconds(costs, 4, 2) == pytest.approx(seconds(costs, 2, 2))
    # Three at once take half as long again; one of them has a second slice, and the last microbatch is alone.
    assert seconds(costs, 3, 2) == pytest.approx(1.5 + 1.0 + 8 * 0.04 * (5 * 1.5 + 1))


def test_a_spread_costs_the_many_more_than_the_few() -> None:
    spread = (0.03, 0.04, 0.05, 0.08)
    even, uneven = (Costs((1.0,), microbatches, 0.0, 0.0, 0.0) for microbatches in ((fmean(spread),), spread))
    assert seconds(uneven, 1) == pytest.approx(seconds(even, 1), rel=0.05)
    assert seconds(uneven, 16) - 1.0 > 1.2 * (seconds(even, 16) - 1.0)


def trace_of(folder: Path, workers: int, microbatch: int) -> Path:
    """Microbatches of `microbatch` us with gaps of a tenth, alternating over the workers; the first iteration is warm-up,
    and slower.
    """
    spans = []

    def add(kind, worker, start, duration, number, iteration, step=0):
        task = Task(kind, number, iteration, Microbatch(step, 4))
        spans.append(Span(worker, task, start / 1e6, (start + duration) / 1e6))

    for iteration in (0, 1):
        duration = microbatch if iteration else 9 * microbatch
        for index in range(8):
            start = index // workers * 11 * duration // 10
            add(GRADIENT, index % workers, start, duration, index, iteration, step=index // 4)
        for worker in range(workers):
            add(COLLECT, worker, 0, 50 * duration, worker, iteration)
            for stage in STAGE_NAMES.values():
                add(stage, worker, 0, 300 // workers // len(STAGE_NAMES), worker, iteration)
    trace = Trace(folder / "trace-1.json", origin=0.0, num_workers=workers, warn=pytest.fail)
    trace.add([], spans)
    trace.close()
    return trace.path


def test_costs_are_read_from_traces(tmp_path) -> None:
    pieces = Pieces(slices=4, microbatches=8, updates=12)
    for name in "ab":
        (tmp_path / name).mkdir()
    alone, together = trace_of(tmp_path / "a", 1, 1000), trace_of(tmp_path / "b", 2, 1200)
    smallest = Iteration(1.0, 2.0, 0.1, pieces, workers=1, cores=2)
    found = measured_costs(smallest, [alone], [together], 1)
    assert found is not None
    costs, shared = found
    assert (costs.slices, set(costs.microbatches), len(costs.microbatches)) == ((0.05,), {0.001}, 8)
    assert (costs.claim, costs.reduce) == (pytest.approx(0.0001), pytest.approx(0.0003))
    assert (set(shared.slices), set(shared.microbatches), len(shared.microbatches)) == ({0.06}, {0.0012}, 8)
    assert (shared.claim, shared.reduce) == (pytest.approx(0.00012), pytest.approx(0.0003))
    assert shared.rest == costs.rest
    assert measured_costs(smallest, [], [together], 1) is None
    assert measured_costs(smallest, [alone], [], 1) == (costs, costs)


def test_many_cores_have_their_shape_and_more_work_for_the_coordinator() -> None:
    settings = load_settings(file=iteration_simulation.MANY_CORES, flags={})
    costs = Costs((0.05,), (0.001,), 1e-4, 3e-4, 0.1)
    few, many = (
        efficiencies((costs, costs), PIECES, steps) for steps in (4096, settings.sizes.steps_per_iteration)
    )
    assert few[0] == many[0], "this shape"
    assert few[1] != many[1], "16 times the coordinator's work, and just as much"
    assert all(line.startswith("SIMULATED efficiency, not measured") for line in few)
    shape = pieces_of(settings)
    expected = seconds(costs, 1, 1, shape) / 128 / seconds(costs, 128, 128, shape)
    assert many[1].endswith(f"128: {expected:.0%}")


def test_results_of_others_import_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text("open('imported', 'w').close()")
    (tmp_path / "summary.json").write_text(json.dumps({"cores": 1, "warmup": 1, "sizes": []}))
    (tmp_path / "config.yaml").write_text("env: {id: 'strange:Env-v0'}")
    with pytest.raises(InputError):
        iteration_simulation.report(tmp_path)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("summary", [{"cores": 1}, {"cores": 1, "warmup": 1, "sizes": 2.0}])
def test_results_with_missing_parts_are_refused_in_one_line(tmp_path, summary) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "config.yaml").write_text("env: {id: CartPole-v1}")
    with pytest.raises(InputError, match=r"not the results of benchmarks/scaling\.py"):
        iteration_simulation.report(tmp_path)
