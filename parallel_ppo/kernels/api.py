"""The boundary of Python and C, read from `api.h`: constants, structures, types of functions, and the library.
Needs no torch.

    network = structure("mlp")(layers=2, ...)
    load_library(choose_variant()).mlp_pack(ctypes.addressof(network))
"""

import ctypes
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.kernels.build import BuildError, load
from parallel_ppo.kernels.choice import choose_variant

HEADER = Path(__file__).with_name("api.h")
TYPES: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


class Api(NamedTuple):
    constants: dict[str, int]
    structures: dict[str, Any]
    functions: dict[str, tuple[Any, list[Any]]]  # result and arguments


@functools.cache
def read_api(header: Path = HEADER) -> Api:
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$|\bconst\b", "", text, flags=re.MULTILINE)
    types, found = dict(TYPES), Api({}, {}, {})
    pattern = re.compile(
        r"enum\s*{(?P<enum>[^}]*)}\s*;"
        r"|typedef\s+struct\s*{(?P<members>[^}]*)}\s*(?P<structure>\w+)\s*;"
        r"|typedef(?P<named>[^;{]*?)(?P<name>\w+)\s*;"
        r"|(?P<result>[\w\s*]+?)(?P<function>\w+)\s*\((?P<arguments>[^)]*)\)\s*;"
    )
    end = 0
    for match in pattern.finditer(text):
        assert not (between := text[end : match.start()].strip()), f"{header.name}: cannot read {between}"
        end = match.end()
        if match["enum"] is not None:
            _read_enum(match["enum"], found.constants)
        elif match["structure"]:
            fields = [
                field
                for declaration in match["members"].split(";")
                if declaration.strip()
                for field in _members(declaration, types)
            ]
            types[match["structure"]] = type(match["structure"], (ctypes.Structure,), {"_fields_": fields})
            found.structures[match["structure"]] = types[match["structure"]]
        elif match["name"]:
            types[match["name"]] = _type_of(match["named"], types)
        else:
            arguments = [_members(argument, types)[0][1] for argument in match["arguments"].split(",")]
            found.functions[match["function"]] = _type_of(match["result"], types), arguments
    assert not text[end:].strip(), f"{header.name}: cannot read {text[end:].strip()}"
    return found


def _read_enum(body: str, constants: dict[str, int]) -> None:
    value = -1
    for entry in filter(None, (part.strip() for part in body.split(","))):
        name, _, number = (part.strip() for part in entry.partition("="))
        value = value + 1 if not number else constants[number] if number in constants else int(number, 0)
        constants[name] = value


def _type_of(declaration: str, types: dict[str, Any]) -> Any:
    if "*" in declaration:
        return ctypes.c_void_p
    return types[declaration.strip()]


def _members(declaration: str, types: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and types in a declaration such as `float *mean, *scale[3]`."""
    first, *others = (part.strip() for part in declaration.split(","))
    match = re.fullmatch(r"(\w+)\s*(.*)", first, re.DOTALL)
    assert match, f"cannot read {declaration}"
    members = []
    for declarator in (match[2], *others):
        name = re.search(r"(\w+)\s*(?:\[(\d+)\])?$", declarator)
        assert name, f"cannot read {declaration}"
        kind = _type_of(match[1] + declarator[: name.start()], types)
        members.append((name[1], kind * int(name[2]) if name[2] else kind))
    return members


def structure(name: str) -> Any:
    """A class of `ctypes.Structure`. The members are addresses where C has pointers."""
    return read_api().structures[name]


def constant(name: str) -> int:
    return read_api().constants[name]


@functools.cache
def load_library(variant: str) -> ctypes.CDLL:
    """Its functions know their types."""
    library = load(variant)
    for name, (result, arguments) in read_api().functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def available(variant: str | None = None) -> tuple[bool, str]:
    """Returns whether the kernels work here (compiling them if need be), and the variant or the problem."""
    try:
        chosen = choose_variant(variant)
        load_library(chosen)
    except (ValueError, BuildError) as error:
        return False, str(error)
    return True, chosen
