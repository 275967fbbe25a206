"""Writes files atomically, and reads untrusted files safely."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
TEMPORARY = ".writing-"  # prefix of unfinished files
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Pieces = Sequence[memoryview]  # consecutive parts of a file


class Damaged(Exception):
    """The reason why a file must not be used, in one line."""


def temporary_beside(path: Path) -> Path:
    """An unpredictable name in the same folder, so that no prepared link can redirect a write."""
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}{path.suffix}")


def write_durably(path: Path, *pieces: bytes | memoryview) -> None:
    """Writes a new file. An existing file or link is an error."""
    _write_new(path, pieces)


def _write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    descriptor = os.open(path, NEW_FILE, 0o666)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view[:CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Leaves the old or the new content, even after an error or a power failure."""
    temporary = temporary_beside(path)
    try:
        _write_new(temporary, [data] if isinstance(data, bytes) else data)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def open_to_append(path: Path) -> int:
    """A descriptor of a regular file. A link or a pipe is an error."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def sync_directory(path: Path) -> None:
    """Makes names durable if the file system supports it and the folder is readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """Opens an untrusted file: a regular file of limited size, never a pipe that blocks or an endless device.

    Links are followed, because reading through them does no harm.
    """
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
    """Reads in chunks, because the file may be larger than the free memory."""
    with open_regular(path, sum(map(len, pieces))) as file:
        for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                expected = piece[start : start + CHUNK]
                if file.read(len(expected)) != expected:
                    return False
        return not file.read(1)
