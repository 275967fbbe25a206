"""Files in untrusted folders, and the user's signing key."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from parallel_ppo.evaluation import video
from parallel_ppo.exits import InputError
from parallel_ppo.storage import user_key
from parallel_ppo.storage.files import open_to_append, write_atomically, write_durably
from parallel_ppo.storage.json_lines import read_records
from parallel_ppo.storage.run_directory import RunDirectory


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    (tmp_path / "downloaded").mkdir()
    return path


def test_no_link_in_a_folder_leads_a_write_elsewhere(victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "downloaded"
    for name in (
        ".evaluation.json.tmp",
        "evaluation.json",
        ".play.tmp.gif",
        "play.gif",
        "faults.jsonl",
        ".lock",
    ):
        (folder / name).symlink_to(victim)
    write_atomically(folder / "evaluation.json", b"new")
    video.write(iter([Image.new("RGB", (8, 8))]), [folder / "play.gif"], fps=2)
    for write in (lambda path: write_durably(path, b"new"), open_to_append):
        with pytest.raises(OSError):
            write(folder / "faults.jsonl")
    with pytest.raises(Exception, match="cannot be created or locked"):
        RunDirectory(folder, None, is_new=True).open()
    assert victim.read_bytes() == b"precious"
    assert (folder / "evaluation.json").read_bytes() == b"new" and not (folder / "play.gif").is_symlink()


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    write_atomically(path, b"{}")
    assert os.listdir(tmp_path) == [path.name]


def test_first_starts_at_once_agree_on_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(20):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / str(attempt)))
        with ThreadPoolExecutor(8) as threads:
            signatures = list(threads.map(user_key.signature, [b"x"] * 8))
        assert None not in signatures and len(set(signatures)) == 1
        assert os.listdir(tmp_path / str(attempt) / "parallel_ppo") == ["key"]


def test_a_new_key_and_a_key_that_cannot_be_kept_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    warnings: list[str] = []
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for _ in range(2):
        user_key.prepare(notes.append, warnings.append)
    assert len(notes) == 1 and user_key.VARIABLE in notes[0] and not warnings
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "parallel_ppo" / "key"))  # not a folder
    user_key.prepare(notes.append, warnings.append)
    assert len(notes) == 1 and "--trust-checkpoint" in warnings[0] and user_key.signature(b"x") is None


def test_a_named_key_serves_in_every_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(user_key.VARIABLE, str(tmp_path / "mounted" / "key"))
    signatures = []
    for home in ("one", "other"):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / home))
        user_key.prepare(pytest.fail, pytest.fail)
        signatures.append(user_key.signature(b"x"))
    assert signatures[0] == signatures[1] is not None
    (tmp_path / "mounted" / "key").write_bytes(b"short")
    with pytest.raises(InputError, match=r"PARALLEL_PPO_KEY_FILE: .* 5 bytes"):
        user_key.prepare(pytest.fail, pytest.fail)


def test_a_pipe_in_the_place_of_a_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "faults.jsonl")
    with pytest.raises(OSError):
        open_to_append(tmp_path / "faults.jsonl")
    reader = os.open(tmp_path / "faults.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        open_to_append(tmp_path / "faults.jsonl")
    os.close(reader)
    with pytest.raises(InputError, match="not a regular file"):
        list(read_records(tmp_path / "faults.jsonl"))


def test_an_atomic_write_is_durable_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    write_atomically(tmp_path / "a", b"new")
    assert len(synced) == 2 and synced[-1] == str(tmp_path)


def test_a_key_that_others_can_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, warnings = tmp_path / "key", list[str]()
    key.write_bytes(bytes(32))
    monkeypatch.setenv(user_key.VARIABLE, str(key))
    for mode in (0o600, 0o400, 0o640, 0o602):
        key.chmod(mode)
        user_key.prepare(lambda line: None, warnings.append)
    assert len(warnings) == 2 and "chmod 600" in warnings[0]


def test_a_sparse_log_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    with open(tmp_path / "metrics.jsonl", "wb") as file:
        file.truncate((1 << 32) - 1)
    with pytest.raises(InputError, match="a line of over"):
        list(read_records(tmp_path / "metrics.jsonl"))
