"""Files that are never half-written, and reading that cannot be led astray."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
TEMPORARY = ".writing-"  # what is not finished begins with this
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


Pieces = Sequence[memoryview]  # bytes that belong one behind the other: arrays are written where they lie


class Damaged(Exception):
    """A file that must not be used, and why, in one line."""


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that nobody can guess: no link that lies there already can lead a write
    elsewhere.
    """
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}{path.suffix}")


def write_durably(path: Path, *pieces: bytes | memoryview) -> None:
    """A new file: one that is there already, or a link, is an error."""
    descriptor = os.open(path, NEW_FILE, 0o666)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view[:CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """The old content or the new one, whatever happens; nothing else stays behind a failure."""
    temporary = temporary_beside(path)
    try:
        write_durably(temporary, data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def open_to_append(path: Path) -> int:
    """A descriptor. A link in the place of the file is an error: it could lead anywhere."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """A regular file of bounded size: no pipe to wait for, no device that never ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{path} is not a regular file")
        if status.st_size > max_bytes:
            raise Damaged(f"{path} has {status.st_size:,} bytes, expected at most {max_bytes:,}")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)


def read_regular(path: Path, max_bytes: int) -> bytes:
    with open_regular(path, max_bytes) as file:
        return file.read(max_bytes + 1)


def holds_exactly(path: Path, pieces: Pieces) -> bool:
    """Read a little at a time: what is compared may be larger than the memory that is left."""
    with open_regular(path, sum(map(len, pieces))) as file:
        for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                expected = piece[start : start + CHUNK]
                if file.read(len(expected)) != expected:
                    return False
        return not file.read(1)
