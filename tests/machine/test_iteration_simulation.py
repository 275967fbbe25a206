"""The simulation of an iteration: what must hold whatever was measured."""

from statistics import fmean

import pytest

from parallel_ppo.machine.iteration_model import Iteration, Pieces
from parallel_ppo.machine.iteration_simulation import Costs, costs_of, simulated_seconds

PIECES = Pieces(slices=4, lanes=16, updates=8)


def seconds(costs: Costs, workers: int, cores: int | None = None, pieces: Pieces = PIECES) -> float:
    return simulated_seconds(costs, pieces, workers=workers, cores=cores or workers)


def test_one_worker_takes_as_long_as_it_was_measured_to() -> None:
    measured = Iteration(4.2, 6.5, 0.3, PIECES, workers=1, cores=2)
    costs = costs_of(measured, slices=[1.0, 1.0], lanes=[0.04], claim=0.0, reduce=0.01)
    assert seconds(costs, 1, 2) == pytest.approx(measured.total)


def test_equal_pieces_are_dealt_whole_and_the_rest_does_not_divide() -> None:
    costs = Costs((1.0,), (0.04,), 0.01, 0.08, 0.5)
    for workers, slices, lanes in ((2, 2, 8), (3, 2, 6), (16, 1, 1), (64, 1, 1)):
        expected = 0.5 + slices * 1.0 + 8 * (lanes * 0.05 + 0.08 / workers)
        assert seconds(costs, workers) == pytest.approx(expected)


def test_more_workers_than_cores_share_them() -> None:
    costs = Costs((1.0,), (0.04,), 0.0, 0.0, 0.0)
    assert seconds(costs, 4, 2) == pytest.approx(seconds(costs, 2, 2))
    # Three at once take half as long again; one of them has a second slice, and the last lane is alone.
    assert seconds(costs, 3, 2) == pytest.approx(1.5 + 1.0 + 8 * 0.04 * (5 * 1.5 + 1))


def test_a_spread_costs_the_many_more_than_the_few() -> None:
    spread = (0.03, 0.04, 0.05, 0.08)
    even, uneven = (Costs((1.0,), lanes, 0.0, 0.0, 0.0) for lanes in ((fmean(spread),), spread))
    assert seconds(uneven, 1) == pytest.approx(seconds(even, 1), rel=0.05)
    assert seconds(uneven, 16) - 1.0 > 1.2 * (seconds(even, 16) - 1.0)
