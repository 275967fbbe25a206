"""One reader for every file of JSON lines: nothing hangs, and damage costs only the damaged line."""

import os
from pathlib import Path

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.storage import json_lines
from parallel_ppo.storage.json_lines import read_lines, read_records


def test_whole_lines_are_read_and_damaged_ones_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff{\n[1]\n' + b"[" * 100_000 + b'\n{"a": 2}\n{"a": 3}')
    assert list(read_records(path)) == [{"a": 1}, {"a": 2}]
    lines = list(read_lines(path))
    assert [line.number for line in lines if line.record is None] == [2, 3, 4]
    assert not lines[-1].is_whole and lines[-1].end == path.stat().st_size
    assert [line.record for line in read_lines(path, start=lines[3].end)] == [{"a": 2}, {"a": 3}]
    assert list(read_records(tmp_path / "missing")) == []


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 16)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'"' + b"x" * 1000 + b'"\n{"a": 2}\n')
    first, second = read_lines(path)
    assert len(first.data) == 16 and first.record is None and first.is_whole
    assert second.record == {"a": 2} and second.end == path.stat().st_size


def test_pipes_devices_and_huge_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(json_lines.MAX_LOG_BYTES + 1)
    for name, problem in (("pipe", "not a regular"), ("link", "not a regular"), ("huge", "at most")):
        with pytest.raises(InputError, match=f"{name} .*{problem}"):
            list(read_lines(tmp_path / name))
