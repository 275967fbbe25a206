"""The machine's share in a run's bits: the CPU and the versions of the libraries that compute.

A portable run learns the same bits on every x86-64-v3 machine, so none of these matter to it. Environments in Python
may need the same minor version of Python and major version of NumPy.
"""

import torch

from parallel_ppo.envs.versions import one_procgen, python_versions, versions_of
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.settings.env_families import FAMILIES
from parallel_ppo.settings.schema import Settings
from parallel_ppo.version import ARITHMETIC, VERSION

LIBRARIES = ("torch", "numpy", *(library for family in FAMILIES for library in family.LIBRARIES))

OF_MACHINES = frozenset(("cpu", "instructions", "kernels", "torch", "numpy", "parallel_ppo"))


def arithmetic(settings: Settings, cpu_model: str, *, portable: bool) -> dict[str, str]:
    found = {
        "arithmetic": str(ARITHMETIC),
        "portable": str(portable).lower(),
        "cpu": cpu_model,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "parallel_ppo": VERSION,
        **python_versions(settings),
        "functions": "compiled" if available()[0] else "NumPy's",
    }
    if settings.training.kernels == "native":
        found["kernels"] = choose_variant()
    return found | versions_of(LIBRARIES)


def differences(there: dict[str, str], here: dict[str, str]) -> list[str]:
    """One line for each. A library that only one side has is ignored: the other does not need it. Portable runs need
    no equal machines.
    """
    ignored = {"portable"}
    if there.get("portable") == here.get("portable") == "true":
        ignored |= OF_MACHINES
    there, here = ({"arithmetic": "1"} | one_procgen(found) for found in (there, here))
    return [
        f"{name} {there[name]} there, {here[name]} here"
        for name in there
        if name not in ignored and name in here and here[name] != there[name]
    ]
