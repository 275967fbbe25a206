"""The addresses of NumPy's own float32 loops, so that our C code can round exactly as NumPy does, whatever
its version and whatever this CPU has. They are part of NumPy's C interface (`PyUFuncObject`, ufuncobject.h).
"""

import ctypes
from typing import Any

import numpy as np

from parallel_ppo.kernels.api import structure

FLOAT = np.dtype(np.float32).num


class _Ufunc(ctypes.Structure):
    """The head of PyUFuncObject, behind the head of every object."""

    _fields_ = (
        ("nin", ctypes.c_int), ("nout", ctypes.c_int), ("nargs", ctypes.c_int), ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)), ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int), ("reserved", ctypes.c_int), ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_ubyte)),
    )  # fmt: skip


def float_loop(function: np.ufunc) -> Any:
    """The loop for float32 arguments and results: the first that fits, as NumPy itself chooses."""
    inner = _Ufunc.from_address(id(function) + object.__basicsize__)
    assert inner.name == function.__name__.encode() and inner.nargs == function.nargs, "not NumPy's layout"
    for index in range(inner.ntypes):
        types = inner.types[index * inner.nargs : (index + 1) * inner.nargs]
        if types == [FLOAT] * inner.nargs:
            return structure("numpy_function")(
                inner.functions[index], inner.data[index] if inner.data else None
            )
    raise AssertionError(f"NumPy's {function.__name__} has no loop for float32")
