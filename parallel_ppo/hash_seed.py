"""Fixes Python's hash seed, because the order of sets of strings changes what some environments do.

It must be set before the interpreter starts, so commands restart themselves, and child processes inherit it.
"""

import os
import sys

VARIABLE, FIXED = "PYTHONHASHSEED", "0"


def with_fixed_hash_seed() -> dict[str, str]:
    """The environment variables of a child interpreter."""
    return os.environ | {VARIABLE: FIXED}


def restart_with_fixed_hash_seed() -> None:
    """Restarts this command, unless its seed is fixed or another program called it with other arguments."""
    is_this_command = sys.argv[1:] == sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1 :]
    if is_this_command and sys.flags.hash_randomization and os.environ.get(VARIABLE) != FIXED:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], with_fixed_hash_seed())
