"""A run directory belongs to one process at a time, and to one run."""

import json
import os
import signal

import pytest

from parallel_ppo.exits import InputError, StorageError
from parallel_ppo.storage.run_directory import OWNER, RunDirectory


def test_a_directory_in_use_is_refused_and_a_crash_leaves_no_lock(tmp_path):
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        RunDirectory.new(tmp_path / "run", "parallel", None).open()
        os.write(ready_write, b"x")
        signal.pause()
    os.read(ready_read, 1)
    try:
        with pytest.raises(InputError, match="in use by another process"):
            RunDirectory.new(tmp_path / "run", "parallel", None).open()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    directory = RunDirectory.new(tmp_path / "run", "parallel", None)
    directory.open()
    directory.close()


def test_a_run_that_came_meanwhile_is_not_overwritten(tmp_path):
    late = RunDirectory.new(tmp_path / "run", "parallel", None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(InputError, match="already contains a run"):
        late.open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_told_in_one_line(tmp_path):
    directory = RunDirectory.new(tmp_path / "run", "parallel", None)
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot be created or locked"):
        directory.open()
    tmp_path.chmod(0o700)


def test_checkpoints_elsewhere_must_belong_to_the_run(tmp_path):
    mine = RunDirectory.new(tmp_path / "mine", "sequential", tmp_path / "weights")
    mine.open()
    mine.describe(kind="sequential", seed=1, session={}, machine={}, placement={})
    (tmp_path / "mine" / "config.yaml").write_text("")
    mine.close()
    assert (tmp_path / "weights" / OWNER).read_text() == str(tmp_path / "mine")
    assert RunDirectory.existing(tmp_path / "mine").checkpoints == tmp_path / "weights"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "config.yaml").write_text("")
    for elsewhere in (str(tmp_path / "weights"), "two\nlines", "\ud800", "x" * 5000):
        (stranger / "run.json").write_text(json.dumps({"checkpoints": elsewhere}))
        with pytest.raises(InputError, match="does not name this run") as caught:
            RunDirectory.existing(stranger)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", ["", "[]", '{"sessions": 3}', "[" * 100_000, '{"checkpoints": 7}'])
def test_a_run_can_be_resumed_without_a_readable_run_json(tmp_path, content):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "run.json").write_text(content)
    directory = RunDirectory.existing(tmp_path)
    directory.open()
    directory.describe(kind="parallel", seed=1, session={}, machine={}, placement={})
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 1


def test_a_shared_policy_is_not_resumed(tmp_path):
    """It has the settings of a run, which would start again in its folder."""
    (tmp_path / "config.yaml").touch()
    RunDirectory.existing(tmp_path)
    (tmp_path / "provenance.json").touch()
    with pytest.raises(InputError, match=r"is a shared policy and no run; .* --init-from"):
        RunDirectory.existing(tmp_path)


def test_runs_that_start_together_get_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = [RunDirectory.new(None, "parallel", None) for _ in range(3)]
    for directory in together:
        directory.open()
    assert [str(directory.root) for directory in together] == [f"runs/parallel-{n}" for n in (1, 2, 3)]
    for directory in together:
        assert directory.checkpoints.is_dir() and directory.checkpoints.parent == directory.root
        directory.close()


def test_a_start_that_fails_leaves_no_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory.new(None, "parallel", None)
    assert not (tmp_path / "runs").exists()
    directory.claim()
    assert (tmp_path / "runs" / "parallel-1").is_dir()
    directory.close()
    assert os.listdir(tmp_path / "runs") == []


def test_two_runs_cannot_share_a_checkpoint_directory(tmp_path):
    first, second = (
        RunDirectory.new(tmp_path / name, "sequential", tmp_path / "weights") for name in ("one", "two")
    )
    first.open()
    with pytest.raises(InputError, match="weights: is in use by another process"):
        second.open()
    (tmp_path / "weights" / "step_0").mkdir()
    first.close()
    with pytest.raises(InputError, match="contains checkpoints of another run"):
        second.open()
    assert (tmp_path / "weights" / OWNER).read_text() == str(tmp_path / "one")


@pytest.mark.parametrize("name", ["logs", "checkpoints"])
def test_a_linked_folder_is_refused_because_files_in_it_are_deleted(tmp_path, name):
    (tmp_path / "precious").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=f"{name}: is a link"):
        RunDirectory.existing(tmp_path / "run").open()
