"""This package as a child process: the same Python and module path, and the current folder is not
searched first.
"""

import os
import sys
from pathlib import Path


def child(module: str, function: str = "main") -> list[str]:
    """The beginning of a command line that calls `function` of `module`; its arguments follow."""
    home = str(Path(__file__).resolve().parents[1])
    path = [folder or os.getcwd() for folder in sys.path]
    path += [] if home in path else [home]
    program = f"import sys; sys.path[:] = {path!r}; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-c", program]


def command(*arguments: str) -> list[str]:
    """`parallel-ppo` with these arguments."""
    return [*child("parallel_ppo.commands.main"), *arguments]
