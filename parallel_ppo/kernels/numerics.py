"""Functions, sums and draws on arrays with one result on every x86-64-v3 machine (`arrays.c`).

NumPy and LAPACK choose theirs by CPU and version, and libm's differ between versions. Additions, products,
quotients, roots, comparisons and the raw uniform draws are the same everywhere, so those stay NumPy's.
NumPy computes everything where no C library can be compiled.
"""

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_ppo.kernels.api import available, load_library


@functools.cache
def _library() -> ctypes.CDLL | None:
    ok, variant = available()
    return load_library(variant) if ok else None


def _contiguous(values: np.ndarray) -> np.ndarray:
    found = np.ascontiguousarray(values).reshape(np.shape(values))
    assert found.dtype in (np.float32, np.float64), found.dtype
    return found


def _element_wise(name: str, plain: Callable[..., Any]) -> Callable[[np.ndarray], np.ndarray]:
    def function(values: np.ndarray) -> np.ndarray:
        library, found = _library(), _contiguous(values)
        if library is None:
            return np.asarray(plain(found))
        out, prefix = np.empty_like(found), "array_wide_" if found.dtype == np.float64 else "array_"
        getattr(library, prefix + name)(found.ctypes.data, found.size, out.ctypes.data)
        return out

    return function


exp = _element_wise("exp", np.exp)
log = _element_wise("log", np.log)
tanh = _element_wise("tanh", np.tanh)  # of float32 only, as is the next
softplus = _element_wise("softplus", lambda values: np.logaddexp(np.float32(0), values))


def row_sums(values: np.ndarray) -> np.ndarray:
    """[R, ...] -> [R]"""
    library, found = _library(), _contiguous(values).reshape(len(values), math.prod(np.shape(values)[1:]))
    if library is None:
        return found.sum(1)
    out, is_wide = np.empty(len(found), found.dtype), found.dtype == np.float64
    function = library.array_wide_row_sums if is_wide else library.array_row_sums
    function(found.ctypes.data, *found.shape, out.ctypes.data)
    return out


def column_sums(values: np.ndarray) -> np.ndarray:
    """[R, ...] -> [...], row by row."""
    library, found = _library(), _contiguous(values)
    if library is None:
        return found.sum(0)
    out, is_wide = np.empty(found.shape[1:], found.dtype), found.dtype == np.float64
    function = library.array_wide_column_sums if is_wide else library.array_column_sums
    function(found.ctypes.data, len(found), out.size, out.ctypes.data)
    return out


def total(values: np.ndarray) -> float:
    """The sum of all elements, in float64."""
    return float(row_sums(np.asarray(values, np.float64).reshape(1, -1))[0])


def mean(values: np.ndarray) -> float:
    return total(values) / np.size(values)


def whole_power(base: float, exponent: int) -> float:
    """By products alone: `base**exponent` is libm's."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base, exponent = base * base, exponent >> 1
    return result


def standard_normal(
    draws: np.random.Generator, shape: tuple[int, ...], dtype: type = np.float64
) -> np.ndarray:
    """One uniform draw for each number: NumPy's own normal draws call libm."""
    library = _library()
    if library is None:
        return draws.standard_normal(shape).astype(dtype)
    found = draws.random(shape)
    library.array_normals(found.ctypes.data, found.size, found.ctypes.data)
    return found.astype(dtype)


def orthonormal(vectors: np.ndarray) -> np.ndarray:
    """Gram and Schmidt's vectors from the rows of `vectors` [count, length], float64."""
    library, (count, length) = _library(), vectors.shape
    if library is None:
        q, r = np.linalg.qr(vectors.T)
        return (q * np.sign(np.diag(r))).T
    padded = np.zeros((count, -(-length // 8) * 8))
    padded[:, :length] = vectors
    library.array_orthonormal(padded.ctypes.data, *padded.shape)
    return padded[:, :length]
