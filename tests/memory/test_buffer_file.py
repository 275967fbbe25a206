"""Rollouts in a file: the same bits as in memory, nothing left behind, one line where there is no room."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from parallel_ppo.envs.families import probe
from parallel_ppo.exits import InputError
from parallel_ppo.memory.shared import file_bytes, reserve_file, touched_bytes
from parallel_ppo.memory.table import Rollout
from parallel_ppo.workers.memory import Memory, arrays_of
from tests.conftest import command, small_settings, train

ARGUMENTS = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64"]
BUDGET = ["--total-timesteps", "512", "--num-workers", "2"]


def in_file(directory: Path) -> list[str]:
    return ["--set", "hardware.buffers=file", "--set", f"hardware.buffer_directory={directory}"]


@pytest.mark.multiprocess
def test_a_run_in_a_file_learns_the_same_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    twin = train(tmp_path / "memory", *ARGUMENTS, *BUDGET)
    run = train(tmp_path / "file", *ARGUMENTS, *BUDGET, *in_file(disk))
    assert run.summary["policy_sha256"] == twin.summary["policy_sha256"]
    assert run.learning == twin.learning
    assert list(disk.iterdir()) == []


def test_the_rollouts_alone_lie_in_reserved_blocks_without_a_name(tmp_path: Path) -> None:
    settings = small_settings(training__algorithm="appo", training__lag=1)
    filed = settings.changed("hardware", buffers="file", buffer_directory=str(tmp_path))
    spec = probe(settings)
    memory = Memory(filed, spec, 64)
    assert list(tmp_path.iterdir()) == []
    size = file_bytes(arrays_of(filed, spec, 64), filed)
    status = os.fstat(memory.descriptors[2])
    assert (status.st_size, status.st_nlink) == (size, 0) and status.st_blocks * 512 >= size
    assert file_bytes(arrays_of(settings, spec, 64), settings) == 0
    assert (
        touched_bytes(arrays_of(settings, spec, 64), settings)
        - touched_bytes(arrays_of(filed, spec, 64), filed)
        == size
    )
    start = np.frombuffer(memory.maps[2], np.uint8).ctypes.data
    for name, field in memory.table.items():
        places = [
            getattr(rollout, name).ctypes.data - start
            for rollout in (memory.rollouts if field.kind is Rollout else [memory])
        ]
        if getattr(memory, name).size:
            assert all((0 <= place < size) == (field.kind is Rollout) for place in places), name
    other = Memory(filed, spec, 64, memory.descriptors)
    memory.rollouts[1].reward[3, 5] = 7
    assert other.rollouts[1].reward[3, 5] == 7


def test_too_large_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"hardware\.buffer_directory: .* need 1,152,9.* bytes of disk but"):
        reserve_file(str(tmp_path), 1 << 60)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"cannot be reserved in .*No space left"):
        reserve_file(str(tmp_path), 4096)
    assert list(tmp_path.iterdir()) == []


def test_no_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hardware\.buffers: file needs hardware\.buffer_directory"):
        small_settings(hardware__buffers="file")
    told = command("train_parallel_timed.py", *ARGUMENTS, *BUDGET, *in_file(tmp_path / "none"))
    assert told.code == 2 and told.err.count("\n") == 1
    assert "none is not a directory that can be written" in told.err
