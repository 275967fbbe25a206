"""Reads files with one JSON object per line, such as metrics.jsonl. They may grow, be damaged or be untrusted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.exits import InputError
from parallel_ppo.storage.files import Damaged, open_regular

Record = dict[str, Any]
MAX_LOG_BYTES = 4 << 30
MAX_LINE_BYTES = 1 << 20
MAX_SKIPPED_BYTES = 1 << 26


class Line(NamedTuple):
    number: int  # from 1
    end: int  # offset of the next line in bytes
    data: bytes
    record: Record | None  # None: not a JSON object, or longer than MAX_LINE_BYTES
    is_whole: bool  # False for an unfinished last line


def read_lines(path: Path, *, start: int = 0) -> Iterator[Line]:
    """The lines from byte `start`; none if the file is missing.

    Raises InputError for a pipe, a device, a file larger than MAX_LOG_BYTES, and an endless line.
    """
    if not path.exists():
        return
    try:
        with open_regular(path, MAX_LOG_BYTES) as file:
            file.seek(start)
            number = 0
            while data := file.readline(MAX_LINE_BYTES):
                number, last = number + 1, data
                began = file.tell()
                while len(last) == MAX_LINE_BYTES and not last.endswith(b"\n"):
                    last = file.readline(MAX_LINE_BYTES)
                    if file.tell() - began > MAX_SKIPPED_BYTES:  # a sparse file is one endless line
                        raise Damaged(f"{path} has a line of over {MAX_SKIPPED_BYTES:,} bytes")
                record = parsed(data) if last is data else None
                yield Line(number, file.tell(), data, record, last.endswith(b"\n"))
    except Damaged as problem:
        raise InputError(f"{problem}; expected a file of JSON lines") from None


def read_records(path: Path) -> Iterator[Record]:
    """The objects in whole lines; damaged lines are skipped."""
    return (line.record for line in read_lines(path) if line.is_whole and line.record is not None)


def parsed(data: bytes) -> Record | None:
    """A JSON object, or None."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
