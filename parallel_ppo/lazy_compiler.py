"""A shorter import of torch for the processes of a run.

A fifth of `import torch` registers shapes of operators in Python, which only its compiler and tensors without memory
need. Runs need neither: this module leaves the registration out until something imports the compiler.
"""

import importlib
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

REGISTRATIONS, COMPILER = "torch._meta_registrations", "torch._dynamo"


class _BeforeTheCompiler:
    """A finder that finds nothing, but sees that the compiler is imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == COMPILER:
            sys.meta_path.remove(_BeforeTheCompiler)
            importlib.import_module(REGISTRATIONS)
        return None


def import_without_compiler() -> None:
    """Must be called before other modules import torch. Not for networks of users, which may be tried without memory."""
    if "torch" in sys.modules:
        return
    sys.modules[REGISTRATIONS] = types.ModuleType(REGISTRATIONS)
    import torch

    del sys.modules[REGISTRATIONS]
    vars(torch).pop("_meta_registrations", None)
    sys.meta_path.insert(0, _BeforeTheCompiler)
