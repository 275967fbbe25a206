"""The conditions under which portable runs must learn the same bits, and a table of short runs under all of them.

PARALLEL_PPO_OTHER_PYTHON=python-with-another-numpy python -m tests.contract.masks [NAME ...]

Masks imitate CPUs that lack instructions; qemu-user (of Debian, from 7.2 on) emulates one, 20 times slower.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

from tests.conftest import ROOT
from tests.contract.masked_runs import CASES

SCRIPT = ROOT / "tests" / "contract" / "masked_runs.py"
EMULATOR = ("qemu-x86_64", "-cpu", "Haswell-noTSX")
EMULATED = "CartPole PPO", "Pendulum, both normalizers", "coinrun Nature"
DISPATCHED = """
try:
    from numpy._core import _multiarray_umath as core
except ImportError:
    from numpy.core import _multiarray_umath as core
found = [name for name in core.__cpu_dispatch__ if name.startswith("AVX512") or name == "X86_V4"]
print(",".join(name for name in found if core.__cpu_features__.get(name)))
"""
NO_AVX512 = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
AVX2 = {
    "PARALLEL_PPO_KERNEL": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={NO_AVX512}",
}
OTHER_PYTHON = os.environ.get("PARALLEL_PPO_OTHER_PYTHON", "")


class Condition(NamedTuple):
    variables: dict[str, str]
    names: tuple[str, ...] = ()  # of runs; empty: all
    python: str = sys.executable
    emulator: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        return bool(self.python) and (not self.emulator or shutil.which(self.emulator[0]) is not None)


CONDITIONS = {
    "AVX2 only": Condition(AVX2),
    "another NumPy": Condition({}, python=OTHER_PYTHON),
    "torch at its default": Condition({"ATEN_CPU_CAPABILITY": "default"}),
    "libm without FMA": Condition(AVX2 | {"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={NO_AVX512},-FMA,-AVX2"}),
    "emulated Haswell": Condition({"PARALLEL_PPO_KERNEL": "avx2"}, EMULATED, emulator=EMULATOR),
}
AS_IT_IS = Condition({})


def runs(condition: Condition, names: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The results of runs, by name; of those that this condition has."""
    variables, chosen = os.environ | condition.variables, names or tuple(CASES)
    if condition.names:
        chosen = tuple(name for name in condition.names if name in chosen)
    if not chosen:
        return {}
    if "GLIBC_TUNABLES" in condition.variables:
        dispatched = subprocess.run(
            [condition.python, "-c", DISPATCHED], capture_output=True, text=True, check=True
        )
        variables["NPY_DISABLE_CPU_FEATURES"] = dispatched.stdout.strip()
    command = [*condition.emulator, condition.python, str(SCRIPT), *chosen]
    found = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    return {line.pop("name"): line for line in map(json.loads, found.stdout.splitlines())}


def main() -> None:
    names = tuple(sys.argv[1:])
    expected = runs(AS_IT_IS, names)
    found = {name: runs(one, names) for name, one in CONDITIONS.items() if one.is_possible}
    print("| run | as it is |", *(f" {name} |" for name in found), " portable |", sep="")
    print("|---|---|", "---|" * len(found), "---|", sep="")
    for name, wanted in expected.items():
        cells = [_cell(results.get(name), wanted) for results in found.values()]
        why = "; ".join(wanted["tied_to_machine"])
        print(
            "|",
            " | ".join([name, wanted["state_sha256"][:8], *cells, f"false: {why}" if why else "true"]),
            "|",
        )


def _cell(found: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    if found is None:
        return ""
    return "same" if found == wanted else found["state_sha256"][:8]


if __name__ == "__main__":
    main()
