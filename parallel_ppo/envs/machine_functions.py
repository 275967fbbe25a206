"""Which code of an environment may round by CPU or library version: functions of libm and NumPy, and compiled
packages. Found in the bytecode that its classes and functions reach; rendering is left out. What is found need not
matter, so an environment with nothing found is portable and any other may be.
"""

import contextlib
import ctypes
import dis
import functools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import gymnasium

NAMES = """
sin cos tan sinh cosh tanh arcsin arccos arctan arctan2 arcsinh arccosh arctanh asin acos atan atan2 asinh
acosh atanh sinc exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 pow power float_power hypot dist
cbrt erf erfc lgamma dot matmul einsum inner outer vdot vecdot tensordot kron trace linalg fft norm interp
polyfit polyval convolve correlate sum nansum mean nanmean std nanstd var nanvar prod nanprod average cov
corrcoef reduce reduceat trapz trapezoid logspace geomspace quantile percentile normal standard_normal
multivariate_normal exponential standard_exponential lognormal gamma standard_gamma beta poisson gumbel
laplace rayleigh dirichlet logistic vonmises weibull pareto wald zipf chisquare standard_cauchy standard_t
binomial geometric gauss normalvariate expovariate gammavariate betavariate lognormvariate vonmisesvariate
paretovariate weibullvariate sample
"""
FUNCTIONS = frozenset(NAMES.split())
EXACT_PACKAGES = frozenset((*sys.stdlib_module_names, "numpy", "pygame", "typing_extensions"))
NOT_SEARCHED = "gymnasium.spaces", "gymnasium.logger", "gymnasium.error"
NO_NAMES = "LOAD_FAST", "STORE_FAST", "LOAD_CONST"  # of functions
MOST_NAMED = 4
MOST_LISTED = 1000  # of a container


def machine_functions(env: gymnasium.Env) -> str:
    """In words, such as "cos, sin"; empty if there are none."""
    kinds = [type(env)]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        kinds.append(type(env))
    return _in_words(kinds, {_package(base) for kind in kinds for base in kind.__mro__} | {"gymnasium"})


def machine_functions_of(function: Any) -> str:
    """The same of a single function or class."""
    return _in_words([function], {_package(function)})


def _in_words(waiting: list[Any], own: set[str]) -> str:
    found, seen = set[str](), dict[int, Any]()
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen[id(thing)] = thing  # kept, so that no other thing gets its id
            waiting += _reached(thing, own, found)
    named = sorted(found)
    return ", ".join([*named[:MOST_NAMED], *(["others"] if len(named) > MOST_NAMED else [])])


def _module(thing: Any) -> str:
    """The module that defines a module, class or function, or the class of any other object."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    found = getattr(thing, "__module__", None)
    return found if isinstance(found, str) else str(type(thing).__module__)


def _package(thing: Any) -> str:
    return _module(thing).partition(".")[0]


def _reached(thing: Any, own: set[str], found: set[str]) -> Iterable[Any]:
    """Lists what a thing that code names leads to; adds the names that round by machine to `found`. Packages in `own`
    are searched, others count as compiled.
    """
    package = _package(thing)
    if isinstance(thing, (list, tuple, set, frozenset)):
        return [one for one in list(thing)[:MOST_LISTED] if callable(one)]
    if isinstance(thing, dict):
        return [one for one in list(thing.values())[:MOST_LISTED] if callable(one)]
    if isinstance(thing, ctypes.CDLL) or (package not in EXACT_PACKAGES and package not in own):
        found.add("ctypes" if isinstance(thing, ctypes.CDLL) else package)
    elif isinstance(thing, FunctionType):
        if package not in EXACT_PACKAGES:
            _search(thing, found)
            return _named_by(thing, own)
    elif isinstance(thing, type):
        if package not in EXACT_PACKAGES and not _module(thing).startswith(NOT_SEARCHED):
            return _members(thing, found)
    elif isinstance(thing, (functools.partial, functools.partialmethod)):
        return [thing.func]
    elif isinstance(thing, (staticmethod, classmethod)) or hasattr(thing, "__wrapped__"):
        return [thing.__wrapped__]
    elif getattr(thing, "__name__", "") in FUNCTIONS and callable(thing):
        found.add(thing.__name__)
    elif not isinstance(thing, ModuleType):
        return [type(thing)]
    return []


def _members(kind: type, found: set[str]) -> Iterator[Any]:
    yield from kind.__mro__[1:]
    for name, member in vars(kind).items():
        if "render" in name:
            continue
        if isinstance(member, property):
            yield from filter(None, (member.fget, member.fset))
        elif isinstance(member, functools.cached_property):
            yield member.func
        elif type(member).__name__ in ("method_descriptor", "cython_function_or_method", "instancemethod"):
            found.add(_package(kind))  # a compiled class
        elif callable(member) or isinstance(member, (staticmethod, classmethod)):
            yield member


def _search(function: FunctionType, found: set[str]) -> None:
    for code in _codes(function.__code__):
        for line in dis.get_instructions(code):
            power = line.opname in ("BINARY_POWER", "INPLACE_POWER") or line.argrepr in ("**", "**=")
            product = line.opname.endswith("MATRIX_MULTIPLY") or line.argrepr in ("@", "@=")
            if power or product:
                found.add("**" if power else "@")
            elif line.opname == "IMPORT_NAME":
                package = str(line.argval).partition(".")[0]
                is_own = package in (_package(function), "gymnasium", "")
                if package == "ctypes" or not (is_own or package in EXACT_PACKAGES):
                    found.add(package)
            elif line.opname == "LOAD_GLOBAL" and line.argval not in function.__globals__:
                continue  # a builtin: `python_versions` covers its sums
            elif line.opname not in NO_NAMES and line.argval in FUNCTIONS:
                found.add(str(line.argval))


def _named_by(function: FunctionType, own: set[str]) -> Iterator[Any]:
    """The objects that a function's names, defaults and closure refer to."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    named = [function.__globals__[name] for name in names & function.__globals__.keys()]
    searched = set[int]()
    while named:
        thing = named.pop()
        yield thing
        if isinstance(thing, ModuleType) and _package(thing) in own and id(thing) not in searched:
            searched.add(id(thing))
            named += [vars(thing)[name] for name in names & vars(thing).keys()]
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    yield from filter(None, [getattr(function, "__wrapped__", None)])


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
