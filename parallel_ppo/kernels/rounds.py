"""The C functions of `rounds.c`, where there is a library. Needs no torch."""

import ctypes
import functools

from parallel_ppo.kernels.build import BuildError, load
from parallel_ppo.kernels.choice import choose_variant

ITEM_BITS = 24
MAX_ITEMS = (1 << ITEM_BITS) - 1
OVER = -2


@functools.cache
def load_rounds() -> ctypes.CDLL | None:
    """None: items are handed over by messages."""
    try:
        library = load(choose_variant())
    except (ValueError, BuildError):
        return None
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    for name, result, arguments in (
        ("open", None, [pointer, pointer, number, integer]),
        ("next", integer, [*[pointer] * 3, *[integer] * 3]),
        ("is_done", ctypes.c_bool, [pointer, number, integer]),
        ("finish", ctypes.c_bool, [pointer, pointer, integer]),
        ("free", None, [pointer, pointer, number, integer, integer]),
    ):
        function = getattr(library, f"rounds_{name}")
        function.restype, function.argtypes = result, arguments
    return library
