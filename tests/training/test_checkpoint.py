"""Checkpoints: whole or absent, and nothing a stranger writes is believed."""

import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest

from parallel_ppo.evaluation import policy_files
from parallel_ppo.exits import InputError, StorageError
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically, write_durably
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training import checkpoint, saving
from tests.faults.world import CARTPOLE, World


@pytest.fixture(scope="module")
def world():
    return World(CARTPOLE)


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def newest(world, place, trust=False):
    return checkpoint.newest(place, trust=trust, expected=world.expected())


def test_saved_and_loaded_bit_for_bit(world, tmp_path):
    snapshot = world.invent(3)
    assert world.save(tmp_path, snapshot)
    assert world.loaded_iteration(tmp_path, {3: snapshot}) == 3
    assert os.readlink(tmp_path / "latest") == os.readlink(tmp_path / "best") == "step_96"


def test_a_disk_that_stays_full_stops_the_run_after_some_warnings(world, tmp_path, monkeypatch):
    warnings: list[str] = []
    keeper = saving.Keeper(tmp_path, keep=2, warn=warnings.append)
    first, second = world.invent(1), world.invent(2)
    assert keeper.save(first, before=lambda: None, is_best=False, **world.contents(first))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_durably", full)
    for _ in range(saving.MAX_FAILURES - 1):
        assert not keeper.save(second, before=lambda: None, is_best=False, **world.contents(second))
    with pytest.raises(StorageError, match="failure 3 in a row"):
        keeper.save(second, before=lambda: None, is_best=False, **world.contents(second))
    assert len(warnings) == 2 and "No space left" in warnings[0]
    assert world.loaded_iteration(tmp_path, {1: first}) == 1


def test_a_checkpoint_is_never_ahead_of_the_logs(world, tmp_path):
    snapshot = world.invent(1)
    keeper = saving.Keeper(tmp_path, keep=2, warn=lambda line: None)

    def full() -> None:
        raise OSError(28, "No space left on device")

    assert not keeper.save(snapshot, before=full, is_best=False, **world.contents(snapshot))
    assert checkpoint.steps(tmp_path) == []


def test_the_oldest_go_last_and_the_best_stays(world, tmp_path):
    for number in range(1, 6):
        snapshot = world.invent(number)
        keeper = saving.Keeper(tmp_path, keep=2, warn=lambda line: None)
        assert keeper.save(snapshot, before=lambda: None, is_best=number == 2, **world.contents(snapshot))
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step_160", "step_128", "step_64"]
    assert list(tmp_path.glob(".*")) == []


def test_a_stray_folder_of_later_steps_pushes_out_no_checkpoint(world, tmp_path):
    for name in ("step_9999", "step_99999"):
        (tmp_path / name).mkdir()
    keeper = saving.Keeper(tmp_path, keep=2, warn=lambda line: None)
    for number in range(1, 4):
        snapshot = world.invent(number)
        assert keeper.save(snapshot, before=lambda: None, is_best=False, **world.contents(snapshot))
    assert [path.name for path in checkpoint.steps(tmp_path)] == [
        "step_99999",
        "step_9999",
        "step_96",
        "step_64",
    ]


def test_links_that_lead_nowhere_or_in_circles_do_no_harm(world, tmp_path):
    (tmp_path / "latest").symlink_to("latest")
    (tmp_path / "best").symlink_to("nowhere")
    assert world.save(tmp_path, world.invent(1))
    assert os.readlink(tmp_path / "latest") == "step_32"


def test_a_kill_between_the_renames_of_a_step_saved_again_loses_nothing(world, tmp_path, monkeypatch):
    first, again, place = world.invent(3), world.invent(3, 1), tmp_path / "c"
    assert world.save(place, first)
    rename, calls = os.rename, []

    def killed(source, target):
        if calls:
            raise KeyboardInterrupt
        calls.append((source, target))
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", killed)
        world.save(place, again)
    assert world.loaded_iteration(place, {3: first}) == 3
    assert policy_files.candidates(place)[0][0].is_file()
    assert world.save(place, again) and world.loaded_iteration(place, {3: again}) == 3
    assert list(place.glob(".*")) == []


def test_an_older_checkpoint_with_the_right_signature_is_used(world, tmp_path, monkeypatch):
    older = world.invent(2)
    world.save(tmp_path / "c", older)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    world.save(tmp_path / "c", world.invent(3))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path, _, _, refused = newest(world, tmp_path / "c")
    assert path.name == "step_64" and "--trust-checkpoint" in refused[0]


def test_states_of_another_user_need_trust_and_are_signed_then(world, tmp_path, monkeypatch):
    snapshot = world.invent(3)
    world.save(tmp_path / "c", snapshot)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    with pytest.raises(
        InputError, match=r"was not signed with this user's key.*PARALLEL_PPO_KEY_FILE.*--trust-checkpoint"
    ):
        newest(world, tmp_path / "c")
    assert newest(world, tmp_path / "c", trust=True) is not None
    world.save(tmp_path / "c", snapshot)
    assert newest(world, tmp_path / "c") is not None


def test_a_key_that_could_be_guessed_signs_nothing(world, tmp_path):
    key = tmp_path / "config" / "parallel_ppo" / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")
    world.save(tmp_path / "c", world.invent(3))
    with pytest.raises(InputError, match="this user has no key"):
        newest(world, tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adam.first_moment", np.nan),
        ("adam.second_moment", -1.0),
        ("rewards.squares", -1.0),
        ("episode.length", -1),
        ("rewards.running", np.inf),
    ],
)
def test_impossible_numbers_are_refused(world, tmp_path, name, value):
    snapshot = world.invent(3)
    array = snapshot.arrays[name].copy()
    array.reshape(-1)[:1] = value
    broken = Snapshot(snapshot.counters, snapshot.arrays | {name: array}, snapshot.environments)
    world.save(tmp_path, broken)
    with pytest.raises(InputError, match=f"{name} holds impossible numbers"):
        newest(world, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_time", "soon"),
        ("wall_time", 10**400),
        ("wall_time", -1.0),
        ("best_return", 10**400),
        ("best_return", float("inf")),
        ("iteration", -1),
        ("iteration", 10**12),
        ("bit_exact", 1),
        ("env_steps", 2**80),
        ("x", 1),
    ],
)
def test_impossible_counters_are_refused(world, tmp_path, name, value):
    world.save(tmp_path, world.invent(3))
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["counters"][name] = value
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match="manifest"):
        newest(world, tmp_path)


def test_steps_that_do_not_follow_from_the_iterations_are_refused(world, tmp_path):
    world.save(tmp_path, world.invent(3))
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["counters"]["iteration"] = 10**9
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match="1000000000 iterations are not 96 steps"):
        newest(world, tmp_path, trust=True)


def test_a_huge_number_in_a_manifest_costs_only_its_checkpoint(world, tmp_path):
    world.save(tmp_path, world.invent(2))
    world.save(tmp_path, world.invent(3))
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["counters"]["wall_time"] = 10**400
    manifest.write_text(json.dumps(content))
    path, _, _, refused = newest(world, tmp_path)
    assert path.name == "step_64" and "counters.wall_time" in refused[0]


@pytest.mark.parametrize("key", ["learning", "counters", "files"])
def test_the_signature_covers_the_whole_manifest(world, tmp_path, key):
    """Someone who swaps the game or a counter, or takes files of another checkpoint, has no key to sign with."""
    world.save(tmp_path, world.invent(3))
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    if key == "learning":
        content[key]["env.id"] = "Acrobot-v1"
    elif key == "counters":
        content[key]["episodes"] = 77
    else:
        path = tmp_path / "step_96" / "environments.safetensors"
        path.write_bytes(path.read_bytes() + b" ")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        content[key][path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match="was not signed with this user's key"):
        newest(world, tmp_path)


def test_a_checkpoint_of_the_first_format_is_resumed(world, tmp_path):
    """There the signature is of the environments' file alone."""
    world.save(tmp_path, world.invent(3))
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["signature"]
    data = (tmp_path / "step_96" / "environments.safetensors").read_bytes()
    manifest.write_text(json.dumps(content | {"format": 1, "environments_hmac": signature(data)}))
    assert newest(world, tmp_path)[0].name == "step_96"
    manifest.write_text(json.dumps(content | {"format": 1, "environments_hmac": signature(b"other")}))
    with pytest.raises(InputError, match="was not signed with this user's key"):
        newest(world, tmp_path)


def test_a_sparse_file_in_the_place_of_a_policy_is_replaced(world, tmp_path):
    """It has the size and hash that its manifest names, and was once read whole into memory by a save."""
    snapshot = world.invent(3)
    world.save(tmp_path, snapshot)
    policy = tmp_path / "step_96" / "policy.safetensors"
    os.truncate(policy, 1 << 38)
    manifest = tmp_path / "step_96" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"][policy.name]["bytes"] = 1 << 38
    manifest.write_text(json.dumps(content))
    world.save(tmp_path, snapshot)
    assert policy.stat().st_size < 1 << 20 and world.loaded_iteration(tmp_path, {3: snapshot}) == 3


def test_a_copy_under_another_name_is_not_a_newer_state(world, tmp_path):
    snapshot = world.invent(3)
    world.save(tmp_path, snapshot)
    os.system(f"cp -r {tmp_path}/step_96 {tmp_path}/step_9999")
    path, _, _, refused = newest(world, tmp_path)
    assert path.name == "step_96" and "copy of step_96" in refused[0]


def test_reading_waits_for_no_pipe_and_ends_at_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(Damaged, match="not a regular file"):
            read_regular(tmp_path / name, 100)
    (tmp_path / "big").write_bytes(bytes(101))
    with pytest.raises(Damaged, match="101 bytes"):
        read_regular(tmp_path / "big", 100)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        write_atomically(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_saving_copies_nothing(world, tmp_path):
    """A million floats a step make a checkpoint of 1.5 GB: copies of it were most of its time, and of the
    memory.
    """
    snapshot = world.invent(1)
    large = {f"adam.{name}": np.ones(4_000_000, np.float32) for name in ("first_moment", "second_moment")}
    snapshot = snapshot._replace(arrays=snapshot.arrays | large)
    contents = world.contents(snapshot)
    tracemalloc.start()
    try:
        saving.save(tmp_path, snapshot, **contents)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    written = sum(file.stat().st_size for file in (tmp_path / "step_32").iterdir())
    assert written > 32_000_000 and peak < 4_000_000, (written, peak)


def test_what_was_not_written_right_is_no_checkpoint(world, tmp_path, monkeypatch):
    def flipped(path, *pieces):
        data = bytearray(b"".join(pieces))
        data[-1] ^= path.name == checkpoint.POLICY
        write_durably(path, data)

    monkeypatch.setattr(saving, "write_durably", flipped)
    snapshot = world.invent(1)
    with pytest.raises(Damaged, match="does not hold what was written"):
        saving.save(tmp_path, snapshot, **world.contents(snapshot))
    assert checkpoint.steps(tmp_path) == []
