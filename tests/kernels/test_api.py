"""What Python reads from `api.h` is what the C compiler reads."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from parallel_ppo.kernels.api import HEADER, available, load_library, read_api, structure
from parallel_ppo.kernels.build import BuildError, find_compiler


def as_gcc_reads(expressions: list[str], folder: Path) -> list[int]:
    """Values of constant expressions in C."""
    lines = "".join(f'    printf("%ld\\n", (long)({expression}));\n' for expression in expressions)
    source = folder / "layout.c"
    source.write_text(f'#include "{HEADER}"\n#include <stdio.h>\nint main(void) {{\n{lines}}}\n')
    try:
        subprocess.run([find_compiler(), "-o", folder / "layout", source], check=True)
    except BuildError as error:
        pytest.skip(str(error))
    return [int(line) for line in subprocess.check_output(folder / "layout").split()]


def test_members_and_constants_are_where_gcc_has_them(tmp_path: Path) -> None:
    expected = dict(read_api().constants)
    for name, kind in read_api().structures.items():
        expected[f"sizeof({name})"] = ctypes.sizeof(kind)
        for member, _ in kind._fields_:
            field = getattr(kind, member)
            expected[f"offsetof({name}, {member})"] = field.offset
            expected[f"sizeof((({name} *)0)->{member})"] = field.size
    assert len(expected) > 80
    found = dict(zip(expected, as_gcc_reads(list(expected), tmp_path), strict=True))
    assert found == expected


@pytest.mark.skipif(not available()[0], reason=available()[1])
def test_every_declared_function_is_in_the_library() -> None:
    library = load_library(available()[1])
    for name, (result, arguments) in read_api().functions.items():
        assert getattr(library, name).argtypes == arguments and getattr(library, name).restype is result


def test_each_kind_of_declaration_is_read(tmp_path: Path) -> None:
    header = tmp_path / "some.h"
    header.write_text(
        "#define ONE 1 /* not\n read */\n"
        "enum { A, B, C = -7, D };\n"
        "typedef const float *const *lists;\n"
        "typedef uint64_t word;\n"
        "typedef struct { float *now[3], scale; const int32_t *sizes; word first, round; } inner;\n"
        "typedef struct { inner within; lists all; } outer;\n"
        "double work(const outer *s, word round, float rate,\n            lists all);\n"
        "void stop(const inner *s);\n"
    )
    api = read_api(header)
    assert api.constants == {"A": 0, "B": 1, "C": -7, "D": -6}
    names = [(name, ctypes.sizeof(kind)) for name, kind in api.structures["inner"]._fields_]
    assert names == [("now", 24), ("scale", 4), ("sizes", 8), ("first", 8), ("round", 8)]
    assert ctypes.sizeof(api.structures["outer"]) == 64
    pointer = ctypes.c_void_p
    work = ctypes.c_double, [pointer, ctypes.c_uint64, ctypes.c_float, pointer]
    assert api.functions == {"work": work, "stop": (None, [pointer])}


@pytest.mark.parametrize("line", ["int x;", "union { int a; } u;", "void f(whatever a);"])
def test_what_cannot_be_read_is_an_error(tmp_path: Path, line: str) -> None:
    header = tmp_path / "some.h"
    header.write_text(f"{line}\n")
    with pytest.raises((AssertionError, KeyError)):
        read_api(header)


def test_a_member_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TypeError):
        structure("mlp")(*range(100))
