"""Arrays as safetensors, written without a copy."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as safetensors

from parallel_ppo.storage.array_files import TYPES, parse_arrays, pieces_of
from parallel_ppo.storage.files import CHUNK, holds_exactly, write_durably

ARRAYS = {f"a.{name}": np.arange(7).astype(name).reshape(7, 1) for name in TYPES} | {
    "z": np.zeros((0, 3), np.float32),
    "b": np.array(4.5, np.float64),
    "ü": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "c": np.arange(12, dtype=np.int32)[::2],
}


@pytest.mark.parametrize("metadata", [None, {"format": 'a "policy" \\ of ours\n'}])
def test_the_bytes_are_those_of_the_library(metadata: dict[str, str] | None) -> None:
    contiguous = {name: np.asarray(array, order="C") for name, array in ARRAYS.items()}
    assert b"".join(pieces_of(ARRAYS, metadata)) == safetensors.save(contiguous, metadata)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    large = {"large": np.arange(CHUNK // 2 + 3, dtype=np.float32)}
    pieces = pieces_of(ARRAYS | large)
    write_durably(tmp_path / "file", *pieces)
    assert holds_exactly(tmp_path / "file", pieces)
    found = parse_arrays((tmp_path / "file").read_bytes(), "file")
    for name, array in (ARRAYS | large).items():
        assert np.array_equal(found[name], array) and found[name].dtype == array.dtype


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_what_differs_is_noticed(tmp_path: Path, change: str) -> None:
    pieces = pieces_of({"large": np.arange(CHUNK // 2 + 3, dtype=np.float32)})
    write_durably(tmp_path / "file", *pieces)
    size = (tmp_path / "file").stat().st_size
    if change == "shorter":
        os.truncate(tmp_path / "file", size - 1)
    else:
        with open(tmp_path / "file", "r+b") as file:
            file.seek(size - 1)
            file.write(b"\xff")
    assert not holds_exactly(tmp_path / "file", pieces)
