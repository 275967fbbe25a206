"""The C functions of `steps.c`, and one process's view of what they work on."""

import ctypes
import functools

from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import load_library

LANES, SUM, ADAM, COPY = range(4)  # the stages of a step
NUM_STAGES = 4
GO, STOPPED, NOT_FINITE = range(3)  # verdicts on a step
NOTHING, OVER = -1, -2
MOST_WATCH = 1e-4  # seconds that a worker waits awake
TIMES = 3  # begun, ended, by whom
_integer, _pointer, _number, _word = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_uint64


class StepsView(ctypes.Structure):
    """`steps` of steps.c."""

    _fields_ = (
        *((name, _pointer) for name in (
            "header", "bell", "claims", "lane_gradients", "lane_statistics", "gradient", "squares",
            "parameters_now", "first_now", "second_now", "parameters_next", "first_next", "second_next",
            "scalars", "rates", "results", "times", "rows", "lane", "slab", "lane_sizes",
        )),
        *((name, _integer) for name in (
            "parameters", "num_scalars", "steps", "lanes", "ranges", "lanes_of_slice", "slices", "samples",
            "minibatches", "slice_samples",
        )),
        *((name, _number) for name in ("max_norm", "target_kl", "batch_size", "beta1", "beta2", "epsilon")),
        *((name, _integer) for name in ("has_target", "holder", "holders", "asks")),
        ("first", _word), ("round", _word), ("packed_step", _integer), ("watch", _number),
    )  # fmt: skip


@functools.cache
def load_steps() -> ctypes.CDLL:
    library, integer = load_library(choose_variant()), ctypes.c_int
    for name, result, arguments in (
        ("open", None, [_pointer]),
        ("take_part", integer, [_pointer, integer]),
        ("perform", None, [_pointer, integer]),
        ("finish", None, [_pointer, integer]),
        ("free", None, [_pointer, integer]),
    ):
        function = getattr(library, f"steps_{name}")
        function.restype, function.argtypes = result, arguments
    return library
