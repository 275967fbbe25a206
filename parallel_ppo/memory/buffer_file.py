"""A file for rollouts that are larger than the memory.

Scratch only: it has no name (or loses it while it is open), so no death leaves it behind and no resume can
read it. Its blocks are reserved before the start: a page without room would kill the process that
touches it.
"""

import os
import shutil
import tempfile

from parallel_ppo.exits import InputError


def reserve(directory: str, size: int) -> int:
    """The descriptor of a new file with room for `size` bytes."""
    try:
        free = shutil.disk_usage(directory).free
        if free < size:
            raise InputError(
                f"hardware.buffer_directory: the rollout buffers need {size:,} bytes of disk but {free:,} are"
                f" free in {directory}: free some space, give another directory, or use fewer environments or"
                " steps"
            )
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return os.dup(file.fileno())
    except OSError as error:
        raise InputError(
            f"hardware.buffer_directory: {size:,} bytes cannot be reserved in {directory} ({error.strerror});"
            " give another directory, or use fewer environments or steps"
        ) from None
