"""The C functions of `steps.c`, and the constants that both sides know."""

import ctypes
import functools

from parallel_ppo.kernels.api import available, constant, load_library, structure

MICROBATCHES, SUM, EXCHANGE, OPTIMIZER, COPY, NUM_STAGES = (
    constant(name) for name in ("MICROBATCHES", "SUM", "EXCHANGE", "OPTIMIZER", "COPY", "STAGES")
)
GO, STOPPED, NOT_FINITE = (constant(name) for name in ("GO", "STOPPED", "NOT_FINITE"))  # verdicts on a step
NOTHING, OVER, AGAIN, EXCHANGE_OPENED = (  # instead of an item
    constant(name) for name in ("NOTHING", "OVER", "AGAIN", "EXCHANGE_OPENED")
)
NUM_VERDICT_COLUMNS = constant("RESULTS") - constant("STATISTICS")  # after the sums in a row of results
ITEM_BITS = constant("ITEM_BITS")  # of a claim, for its holder and whether it is done
TIMES = constant("TIMES")  # began, ended, holder
MOST_SPIN = 1e-4  # seconds that a worker waits awake
StepsView = structure("steps")


@functools.cache
def load_steps() -> ctypes.CDLL | None:
    """None if the library cannot be compiled here."""
    ok, variant = available()
    return load_library(variant) if ok else None
