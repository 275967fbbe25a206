"""Command lines of child processes with the same Python and module path; the current folder is not searched first."""

import os
import sys
from pathlib import Path


def child(module: str, function: str = "main") -> list[str]:
    """A command line that calls `function` of `module`, to which arguments can be added."""
    home = str(Path(__file__).resolve().parents[1])
    path = [folder or os.getcwd() for folder in sys.path]
    path += [] if home in path else [home]
    program = f"import sys; sys.path[:] = {path!r}; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-c", program]


def command(*arguments: str) -> list[str]:
    """A command line of `parallel-ppo`."""
    return [*child("parallel_ppo.commands.main"), *arguments]
