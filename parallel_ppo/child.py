"""Child processes: the same Python, module path and hash seed; the current folder is not searched first.

Python's hash seed is fixed, because the order of sets of strings changes what some environments do. It must be set
before the interpreter starts, so commands restart themselves.
"""

import os
import sys
from pathlib import Path

HASH_SEED, FIXED = "PYTHONHASHSEED", "0"


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


def with_fixed_hash_seed() -> dict[str, str]:
    """The environment variables of a child interpreter."""
    return os.environ | {HASH_SEED: FIXED}


def restart_with_fixed_hash_seed() -> None:
    """Restarts this command, unless its seed is fixed or another program called it with other arguments."""
    is_this_command = sys.argv[1:] == sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1 :]
    if is_this_command and sys.flags.hash_randomization and os.environ.get(HASH_SEED) != FIXED:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], with_fixed_hash_seed())
