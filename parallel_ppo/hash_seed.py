"""Python's hash seed decides the order of sets of strings, and with it what some environments do. It has to be
fixed before an interpreter starts, so the commands start again with it, and every child gets it.
"""

import os
import sys

VARIABLE, FIXED = "PYTHONHASHSEED", "0"


def with_fixed_hash_seed() -> dict[str, str]:
    """The variables for a child interpreter."""
    return os.environ | {VARIABLE: FIXED}


def restart_with_fixed_hash_seed() -> None:
    """Replaces this process by the same command, unless its seed is fixed already. A program that calls a
    command with arguments of its own is left alone.
    """
    is_this_command = sys.argv[1:] == sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1 :]
    if is_this_command and sys.flags.hash_randomization and os.environ.get(VARIABLE) != FIXED:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], with_fixed_hash_seed())
