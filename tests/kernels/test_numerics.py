"""Functions and sums on arrays against slow twins, and the same bits with every instruction set."""

import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch.nn import functional

from parallel_ppo.algorithms import optimizers
from parallel_ppo.kernels import native, numerics
from parallel_ppo.kernels.api import available, load_library
from parallel_ppo.kernels.build import VARIANTS
from tests.conftest import small_settings

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
pytestmark = pytest.mark.skipif(not USABLE, reason="the kernels cannot be compiled here")
DRAWS = np.random.default_rng(3)
WIDE = DRAWS.uniform(-100, 88, 400)
FUNCTIONS: dict[str, tuple[Callable, Callable, np.ndarray, float]] = {  # ours, exact, where, units in the last place
    "exp": (numerics.exp, mpmath.exp, np.concatenate([WIDE, DRAWS.uniform(-1, 1, 400)]), 1.01),
    "log": (numerics.log, mpmath.log, np.concatenate([np.exp(WIDE), DRAWS.uniform(0.5, 2, 400), [1e-44]]), 1.01),
    "tanh": (numerics.tanh, mpmath.tanh, DRAWS.uniform(-9, 9, 800), 7),
    "softplus": (numerics.softplus, lambda x: mpmath.log(1 + mpmath.exp(x)), DRAWS.uniform(-80, 80, 800), 2.5),
}  # fmt: skip


@pytest.fixture
def each_variant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function with the library of every instruction set; asserts the same bytes and returns them."""

    def call(function: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
        found = []
        for variant in USABLE:
            monkeypatch.setattr(numerics, "_library", lambda variant=variant: load_library(variant))
            found.append(function(*arguments))
        assert all(other.tobytes() == found[0].tobytes() for other in found[1:])
        return found[0]

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_exact_to_the_last_digits(name: str, dtype: type, each_variant: Any) -> None:
    ours, exact, points, most = FUNCTIONS[name]
    if dtype == np.float64 and name not in ("exp", "log"):
        pytest.skip("for float32 only")
    points = points.astype(dtype)
    with mpmath.workdps(40):
        found = each_variant(ours, points)
        for x, y in zip(points.tolist(), found, strict=True):
            true = exact(mpmath.mpf(x))
            assert abs(mpmath.mpf(float(y)) - true) <= most * float(np.spacing(np.abs(dtype(true)))), (x, y)


@pytest.mark.parametrize("name", ["exp", "log"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_keep_what_is_not_finite(name: str, dtype: type, each_variant: Any) -> None:
    points = np.array([0, -0.0, np.inf, -np.inf, np.nan, -1, 1, 1e4, -1e4], dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(points)
    np.testing.assert_allclose(each_variant(getattr(numerics, name), points), expected, rtol=1e-6)


def test_an_element_does_not_depend_on_its_place(each_variant: Any) -> None:
    points = DRAWS.standard_normal(45).astype(np.float32)
    whole = each_variant(numerics.exp, points)
    for first, end in ((0, 1), (3, 20), (17, 45), (44, 45)):
        np.testing.assert_array_equal(each_variant(numerics.exp, points[first:end]), whole[first:end])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_added_in_the_stated_order(count: int, dtype: type, each_variant: Any) -> None:
    rows = (DRAWS.standard_normal((5, count)) * 10 ** DRAWS.uniform(-3, 3, (5, count))).astype(dtype)
    expected, columns = np.zeros(5, dtype), np.zeros(count, dtype)
    for index, row in enumerate(rows):
        parts = np.zeros(16, dtype)
        for term, value in enumerate(row):
            parts[term % 16] += value
        for part in parts:
            expected[index] += part
        columns += row
    np.testing.assert_array_equal(each_variant(numerics.row_sums, rows), expected)
    np.testing.assert_array_equal(each_variant(numerics.column_sums, rows), columns)


def test_normal_draws_are_those_of_the_inverse_distribution(each_variant: Any) -> None:
    found = each_variant(lambda: numerics.standard_normal(np.random.default_rng(1), (4000,)))
    uniform, normal = np.random.default_rng(1).random(4000), statistics.NormalDist()
    expected = np.array([normal.inv_cdf(value) for value in uniform])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    ends = np.array([0.0, 1 - 2.0**-53])
    load_library(USABLE[0]).array_normals(ends.ctypes.data, 2, ends.ctypes.data)
    assert ends[0] == -ends[1] and 8 < ends[1] < 9


@pytest.mark.parametrize(("count", "length"), [(1, 1), (2, 5), (9, 9), (20, 300), (64, 64)])
def test_orthonormal_vectors_are_those_of_a_qr(count: int, length: int, each_variant: Any) -> None:
    vectors = DRAWS.standard_normal((count, length))
    found = each_variant(numerics.orthonormal, vectors)
    q, r = np.linalg.qr(vectors.T)
    np.testing.assert_allclose(found, (q * np.sign(np.diag(r))).T, atol=1e-9)


def test_powers_are_those_of_repeated_products() -> None:
    for base, exponent in ((0.9, 1), (0.999, 12_345), (0.9, 0)):
        exact = float(Fraction(base) ** exponent)
        assert numerics.whole_power(base, exponent) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop_tf"])
def test_rmsprop_steps_as_written_in_torch(optimizer: str) -> None:
    results = []
    for kernels in ("native", "torch"):
        training = small_settings(training__optimizer=optimizer, training__kernels=kernels).training
        draws = torch.Generator().manual_seed(2)
        weight, slope, second = torch.rand(3, 64, generator=draws)
        for number in (1, 2):
            optimizers.step(training, parameters=weight, gradient=slope, first_moment=second, second_moment=second,
                            number=number, learning_rate=0.01, gradient_scale=0.5)  # fmt: skip
        results.append(torch.stack([weight, second]))
    torch.testing.assert_close(*results)


def test_heads_have_the_derivatives_of_torch() -> None:
    draws = torch.Generator().manual_seed(4)
    shapes = (5, 32), (5,), (2, 32), (2,)
    weights = [torch.randn(shape, generator=draws, requires_grad=True) for shape in shapes]
    features = torch.randn((37, 32), generator=draws, requires_grad=True)
    slopes = torch.randn((37, 5), generator=draws), torch.randn((37, 2), generator=draws)
    outputs = functional.linear(features, *weights[:2]), functional.linear(features, *weights[2:])
    expected = torch.autograd.grad(outputs, [features, *weights], slopes)
    heads = native.NativeHeads([weight.detach() for weight in weights])
    for ours, theirs in zip(heads.forward(features.detach()), outputs, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
    gradients = [torch.empty(shape) for shape in shapes]
    by_features = heads.backward(features.detach(), *slopes, gradients)
    for ours, theirs in zip([by_features, *gradients], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_row_sums_are_differentiable() -> None:
    x = torch.randn(3, 4, 5, requires_grad=True)
    assert torch.autograd.gradcheck(native.row_sums, x.double().detach().requires_grad_())
    torch.testing.assert_close(native.row_sums(x), x.sum((1, 2)))
