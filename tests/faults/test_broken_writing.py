"""Checkpoints whose writing is cut off at any call, and disks that are full: one can always be loaded."""

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.training import SMALL, STEPS_PER_ITERATION, Training, checked, is_identical, wait_until
from tests.faults.world import CARTPOLE, NATURE, World

CALLS = ("open", "write", "fsync", "mkdir", "rename", "replace", "symlink", "unlink", "rmdir")
NEED_SPACE = ("open", "write", "fsync", "mkdir", "symlink")
WAYS = ("die", "full", "one error")


class Saboteur:
    """Counts the calls that change a disk, and fails at one of them."""

    def __init__(self, at: int | None, how: str) -> None:
        self.at, self.how, self.count = at, how, 0
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._wrapped(name))

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return self.real[name](*arguments, **options)
            number, self.count = self.count, self.count + 1
            stays_full = self.how == "full" and self.at is not None and number > self.at
            if number == self.at or (stays_full and name in NEED_SPACE):
                return self._fail(name, arguments, options)
            return self.real[name](*arguments, **options)

        return call

    def _fail(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name == "write":  # part of it arrives
            self.real[name](arguments[0], arguments[1][: len(arguments[1]) // 2])
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full" and name not in NEED_SPACE:
            return self.real[name](*arguments, **options)
        number = errno.ENOSPC if self.how == "full" else errno.EIO
        raise OSError(number, os.strerror(number))


def in_child(action: Callable[[], int]) -> int:
    """Exit code of `action` in a process of its own (negative: the signal that ended it)."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("replaces", [False, True], ids=["new step", "same step"])
@pytest.mark.parametrize(
    "shape",
    [CARTPOLE, pytest.param(NATURE, marks=[pytest.mark.full, pytest.mark.procgen])],
    ids=["mlp", "cnn"],
)
def test_writing_cut_off_at_any_call_leaves_a_loadable_checkpoint(
    shape: dict[str, Any], replaces: bool, tmp_path: Path
) -> None:
    """A third checkpoint, with pruning; or one that replaces another of its step."""
    world = World(shape)
    before = [world.invent(number) for number in (1, 2)][replaces:]
    saved = world.invent(2, 1) if replaces else world.invent(3)
    start, counted, place = (tmp_path / name for name in ("start", "counted", "place"))
    for snapshot in before:
        assert world.save(start, snapshot)

    def holds(snapshot: Any) -> bool:
        return world.loaded_iteration(place, {snapshot.counters["iteration"]: snapshot}) is not None

    def count() -> int:
        saboteur = Saboteur(None, "")
        world.save(counted, saved)
        return saboteur.count

    def sabotage(at: int, how: str) -> int:
        Saboteur(at, how)
        return 0 if world.save(place, saved) else 1

    shutil.copytree(start, counted, symlinks=True)
    calls = in_child(count)
    assert 10 < calls < 99
    for how in WAYS:
        for at in range(calls):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(start, place, symlinks=True)
            code, what = in_child(lambda at=at, how=how: sabotage(at, how)), f"{how} call {at}"
            assert code in (0, 1, -signal.SIGKILL), what
            assert holds(saved) or (code != 0 and holds(before[-1])), what
            assert world.save(place, saved) and holds(saved), what
            assert list(place.glob(".*")) == [], what


@contextmanager
def small_disk(place: Path, kilobytes: int, option: str = "rw") -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,{option}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("step", [512, pytest.param(16, marks=pytest.mark.full)], ids=["few", "many"])
def test_a_full_disk_of_any_size_keeps_a_checkpoint(step: int, tmp_path: Path) -> None:
    """A second checkpoint on disks from just too small to large enough."""
    world = World(CARTPOLE | {"training.hidden_sizes": [128, 128]})
    candidates = {number: world.invent(number) for number in (1, 2)}
    assert world.save(tmp_path / "measured", candidates[1])
    one = sum(file.stat().st_size for file in (tmp_path / "measured").rglob("*") if file.is_file()) // 1024
    outcomes = []
    for size in range(one + 48, 2 * one + 2 * step, step):
        with small_disk(tmp_path / "disk", size):
            place = tmp_path / "disk" / "checkpoints"
            assert world.save(place, candidates[1]), size
            outcomes.append(world.save(place, candidates[2]))
            assert world.loaded_iteration(place, candidates) == (2 if outcomes[-1] else 1), size
    assert not outcomes[0] and outcomes[-1]


@pytest.mark.full
@pytest.mark.procgen
def test_a_run_whose_disk_fills_up_goes_on_when_there_is_room(tmp_path: Path) -> None:
    length = ["--total-timesteps", str(30 * STEPS_PER_ITERATION)]
    shape = [*SMALL, *length, "--set", "logging.checkpoint_iterations=1", "--output-dir"]
    disk, log = tmp_path / "disk", tmp_path / "full.log"
    checked([*shape, str(tmp_path / "reference")], tmp_path / "reference.log")
    with small_disk(disk, 60_000):
        training = Training([*shape, str(disk / "run")], log)
        second = disk / "run" / "checkpoints" / f"step_{2 * STEPS_PER_ITERATION}"
        wait_until(training, second.exists)
        with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(4096))
        assert training.wait(300) == 5
        (disk / "filler").unlink()
        checked(["--resume", str(disk / "run")], log)
        assert is_identical(disk / "run", tmp_path / "reference")
    assert "Traceback" not in log.read_text()
