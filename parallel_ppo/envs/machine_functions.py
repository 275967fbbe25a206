"""Which code of an environment may round by CPU or library version: functions of libm and NumPy, and compiled
packages. Found in the bytecode that its classes reach; rendering is left out. What is found need not matter, so
an environment with nothing found is portable and any other may be.
"""

import dis
import inspect
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import gymnasium

FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "arcsin",
        "arccos",
        "arctan",
        "arctan2",
        "asin",
        "acos",
        "atan",
        "atan2",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "logaddexp",
        "pow",
        "power",
        "hypot",
        "cbrt",
        "dot",
        "matmul",
        "einsum",
        "inner",
        "outer",
        "vdot",
        "tensordot",
        "linalg",
        "fft",
        "norm",
        "interp",
        "polyfit",
        "convolve",
        "correlate",
        "sum",
        "mean",
        "std",
        "var",
        "prod",
        "average",
        "cov",
        "normal",
        "standard_normal",
        "multivariate_normal",
        "exponential",
        "standard_exponential",
        "lognormal",
        "gamma",
        "beta",
        "poisson",
        "gumbel",
        "laplace",
        "rayleigh",
        "dirichlet",
    ]
)
EXACT_PACKAGES = frozenset(("numpy", "gymnasium", "pygame", "typing_extensions"))
MOST_NAMED = 4


def machine_functions(env: gymnasium.Env) -> str:
    """In words, such as "cos, sin"; empty if there are none."""
    found, seen, waiting = set[str](), set[int](), list[Any]()
    while True:
        waiting.append(type(env))
        if not isinstance(env, gymnasium.Wrapper):
            break
        env = env.env
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            waiting += _reached(thing, found)
    named = sorted(found)
    return ", ".join([*named[:MOST_NAMED], *(["others"] if len(named) > MOST_NAMED else [])])


def _reached(thing: Any, found: set[str]) -> Iterator[Any]:
    """Lists what a class, a function or a module's object uses; adds the names that round by machine to `found`."""
    module = inspect.getmodule(thing)
    package = (module.__name__ if module else "").partition(".")[0]
    if isinstance(thing, type):
        if package in sys.stdlib_module_names or package == "numpy":
            return
        yield from thing.__mro__[1:]
        for name, member in vars(thing).items():
            if "render" not in name:
                yield from _functions_of(member)
        return
    if not isinstance(thing, FunctionType):
        return
    for code in _codes(thing.__code__):
        for line in dis.get_instructions(code):
            if line.opname in ("BINARY_POWER", "INPLACE_POWER") or line.argrepr in ("**", "**="):
                found.add("**")
            elif line.opname in ("BINARY_MATRIX_MULTIPLY", "INPLACE_MATRIX_MULTIPLY") or line.argrepr in (
                "@",
                "@=",
            ):
                found.add("@")
            elif line.argval in FUNCTIONS and (
                line.opname != "LOAD_GLOBAL" or line.argval in thing.__globals__
            ):
                found.add(str(line.argval))
        for name in set(code.co_names) & thing.__globals__.keys():
            other = thing.__globals__[name]
            owner = other if isinstance(other, ModuleType) else inspect.getmodule(other)
            top = (owner.__name__ if owner else "").partition(".")[0]
            if not top or top in sys.stdlib_module_names or top in EXACT_PACKAGES - {"gymnasium"}:
                continue
            if top not in (package, "gymnasium") or isinstance(other, BuiltinFunctionType):
                found.add(top)
            elif isinstance(other, (FunctionType, type)):
                yield other


def _functions_of(member: Any) -> Iterator[Any]:
    if isinstance(member, property):
        yield from filter(None, (member.fget, member.fset))
    elif isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, (FunctionType, type)):
        yield inspect.unwrap(member) if isinstance(member, FunctionType) else member


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
