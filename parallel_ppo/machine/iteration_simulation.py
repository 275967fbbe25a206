"""The model of an iteration, played through piece by piece with the costs that a run has measured.

`iteration_model.py` knows only means: how long if all pieces were equal? Here each piece takes as long as
some measured one did, slices stay with their worker, whoever is free claims the next lane, and more workers
than cores share them. Pure arithmetic on seconds.
"""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import NamedTuple

from parallel_ppo.machine.iteration_model import Iteration, Pieces

ROUNDS = 5  # iterations that are simulated for a mean
NOTHING = 1e-12


class Costs(NamedTuple):
    """Seconds, measured with one worker; of slices and lanes all that were seen, which is their spread."""

    slices: tuple[float, ...]
    lanes: tuple[float, ...]
    claim: float  # from one lane to the next
    reduce: float  # of all lanes of a minibatch, on one core
    rest: float  # of an iteration: the coordinator, its optimizer and all that waits for it


def costs_of(
    iteration: Iteration,
    *,
    slices: Sequence[float],
    lanes: Sequence[float],
    claim: float,
    reduce: float,
) -> Costs:
    """What the pieces of an iteration with one worker do not explain does not divide."""
    pieces = iteration.pieces
    lane_seconds = pieces.lanes * (fmean(lanes) + claim)
    explained = pieces.slices * fmean(slices) + pieces.updates * (lane_seconds + reduce)
    return Costs(tuple(slices), tuple(lanes), claim, reduce, max(0.0, iteration.total - explained))


def simulated_seconds(costs: Costs, pieces: Pieces, *, workers: int, cores: int) -> float:
    """The mean iteration with so many workers."""
    draw = Random(1)
    return fmean(_one(costs, pieces, workers, cores, draw) for _ in range(ROUNDS))


def _one(costs: Costs, pieces: Pieces, workers: int, cores: int, draw: Random) -> float:
    bounds = [index * pieces.slices // workers for index in range(workers + 1)]
    dealt = [draw.choices(costs.slices, k=end - first) for first, end in pairwise(bounds)]
    seconds = costs.rest + _last_end(dealt, [], cores)
    for _ in range(pieces.updates):
        lanes = [lane + costs.claim for lane in draw.choices(costs.lanes, k=pieces.lanes)]
        seconds += _last_end([[] for _ in range(workers)], lanes, cores) + costs.reduce / min(workers, cores)
    return seconds


def _last_end(dealt: list[list[float]], common: list[float], cores: int) -> float:
    """When the last worker is done: each does what it was dealt, then what is left for all."""
    now, left = 0.0, dict[int, float]()
    while True:
        for worker, own in enumerate(dealt):
            if worker not in left and (own or common):
                left[worker] = (own or common).pop()
        if not left:
            return now
        step = min(left.values())
        now += step * max(1.0, len(left) / cores)
        left = {worker: rest - step for worker, rest in left.items() if rest - step > NOTHING}
