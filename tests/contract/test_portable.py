"""The same parameters on machines that lack instructions, imitated by masks.

`PARALLEL_PPO_OTHER_PYTHON` names an interpreter with another NumPy, whose runs must agree too.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.contract.masked_runs import CASES, can_run

SCRIPT = ROOT / "tests" / "contract" / "masked_runs.py"
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
MASKS = {
    "AVX2 only": AVX2,
    "torch at its default": {"ATEN_CPU_CAPABILITY": "default"},
    "libm without FMA": AVX2 | {"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={NO_AVX512},-FMA,-AVX2"},
    "another NumPy": {},
}


def runs(python: str, mask: dict[str, str]) -> dict[str, dict[str, Any]]:
    environment = os.environ | mask
    if "PARALLEL_PPO_KERNEL" in mask:
        dispatched = subprocess.run([python, "-c", DISPATCHED], capture_output=True, text=True, check=True)
        environment["NPY_DISABLE_CPU_FEATURES"] = dispatched.stdout.strip()
    found = subprocess.run([python, str(SCRIPT)], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    return {line.pop("name"): line for line in map(json.loads, found.stdout.splitlines())}


@pytest.fixture(scope="module")
def as_it_is() -> dict[str, dict[str, Any]]:
    return runs(sys.executable, {})


@pytest.mark.full
@pytest.mark.parametrize("mask", MASKS)
def test_portable_runs_learn_the_same_under_every_mask(mask: str, as_it_is: dict) -> None:
    python = sys.executable
    if mask == "another NumPy":
        python = os.environ.get("PARALLEL_PPO_OTHER_PYTHON", "")
        if not python:
            pytest.skip("PARALLEL_PPO_OTHER_PYTHON is not set")
    found = runs(python, MASKS[mask])
    different = [name for name in found if found[name] != as_it_is[name] and as_it_is[name]["portable"]]
    assert not different and len(found) > len(CASES) / 2


@pytest.mark.full
def test_every_run_on_our_kernels_is_portable_but_for_its_environment(as_it_is: dict) -> None:
    assert as_it_is.keys() == set(filter(can_run, CASES))
    for name, found in as_it_is.items():
        assert found["portable"] == (not found["tied_to_machine"]), name
        assert all("env.id" in reason for reason in found["tied_to_machine"]), (name, found)
