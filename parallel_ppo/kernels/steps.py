"""The C functions of `steps.c`, and one process's view of what they work on."""

import ctypes
import functools

from parallel_ppo.kernels.build import BuildError, load
from parallel_ppo.kernels.choice import choose_variant

LANES, SUM, EXCHANGE, OPTIMIZER, COPY = range(5)  # the stages of a step
NUM_STAGES = 5
GO, STOPPED, NOT_FINITE = range(3)  # verdicts on a step
NUM_VERDICT_COLUMNS = 4  # norm, that of the predictors' gradient, learning rate, verdict: after the sums
NOTHING, OVER, AGAIN, EXCHANGE_OPENED = -1, -2, -3, -4  # instead of an item
ITEM_BITS = 24  # of a claim, for its holder and whether it is done; the others are the round
MAX_ITEMS = (1 << ITEM_BITS) - 1
MOST_SPIN = 1e-4  # seconds that a worker waits awake
TIMES = 3  # began, ended, holder
_integer, _pointer, _number, _word = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_uint64


class StepsView(ctypes.Structure):
    """`steps` of steps.c."""

    _fields_ = (
        *((name, _pointer) for name in (
            "header", "futex", "claims", "lane_gradients", "lane_statistics", "gradient", "squares",
            "parameters_now", "first_now", "second_now", "parameters_next", "first_next", "second_next",
            "scalars", "rates", "results", "times", "rows", "lane", "slab", "lane_sizes",
        )),
        *((name, _integer) for name in (
            "parameters", "policy_blocks", "num_scalars", "steps", "first_lane", "lanes", "all_lanes", "ranges",
            "lanes_of_slice", "slices", "samples", "minibatches", "slice_samples",
        )),
        *((name, _number) for name in ("max_norm", "target_kl", "batch_size", "beta1", "beta2", "epsilon", "learning_rate",
            "adaptive_kl", "adaptive_factor", "adaptive_min", "adaptive_max",
        )),
        *((name, _integer) for name in ("adapts", "has_target", "has_exchange", "python_stages", "holder", "holders")),
        ("first", _word), ("round", _word), ("packed_step", _integer),
        ("spin_seconds", _number), ("opened_exchange", _integer),
    )  # fmt: skip


@functools.cache
def load_steps() -> ctypes.CDLL | None:
    """None if the library cannot be compiled here."""
    try:
        library = load(choose_variant())
    except (ValueError, BuildError):
        return None
    integer = ctypes.c_int
    for name, result, arguments in (
        ("open", None, [_pointer]),
        ("take_part", integer, [_pointer, integer]),
        ("perform", None, [_pointer, integer]),
        ("judge", ctypes.c_bool, [_pointer, integer, _pointer]),
        ("finish", None, [_pointer, integer]),
        ("awaits_exchange", ctypes.c_bool, [_pointer]),
        ("exchanged", None, [_pointer]),
        ("free", None, [_pointer, integer]),
    ):
        function = getattr(library, f"steps_{name}")
        function.restype, function.argtypes = result, arguments
    return library
