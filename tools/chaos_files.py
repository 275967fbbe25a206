"""Faults against checkpoints: writing that is cut off at every call, and disks that are full from every
call on.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from parallel_ppo.envs.families import probe  # noqa: E402
from parallel_ppo.memory.snapshots import Snapshot  # noqa: E402
from parallel_ppo.policies.parameters import bind, initialise, num_flat, sha256, views  # noqa: E402
from parallel_ppo.policies.policy import Policy  # noqa: E402
from parallel_ppo.settings.layers import load_settings  # noqa: E402
from parallel_ppo.settings.learning import learning_settings  # noqa: E402
from parallel_ppo.settings.schema import Settings  # noqa: E402
from parallel_ppo.training import checkpoint, saving  # noqa: E402
from parallel_ppo.training.state import TrainingState  # noqa: E402
from parallel_ppo.workers.memory import Memory  # noqa: E402

Report = dict[str, Any]
CARTPOLE = {"env.id": "CartPole-v1", "env.num_envs": 4, "training.n_steps": 8, "training.batch_size": 32,
"training.policy": "mlp",
            "training.hidden_sizes": [8, 8]}  # fmt: skip
NATURE = {"env.id": "coinrun", "env.num_envs": 16, "training.n_steps": 16, "training.batch_size": 64,
          "training.policy": "nature"}  # fmt: skip


class World:
    """A training state with invented contents, and what a session uses to save and load it."""

    def __init__(self, flags: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.settings: Settings = load_settings(file=None, flags=flags)
        self.spec = probe(self.settings)
        self.policy = Policy(self.settings, self.spec)
        memory = Memory(self.settings, self.spec, num_flat(self.policy))
        self.state = TrainingState(self.settings, memory)
        bind(self.policy, self.state.parameters)
        self.names = list(views(self.policy, self.state.parameters))
        self.fresh = self.state.snapshot()

    def invent(self, iteration: int, variant: int = 0) -> Snapshot:
        """A state that differs from every other iteration's in every array."""
        draw = np.random.default_rng([iteration, variant])
        state, memory = self.state, self.state.memory
        state.counters.iteration = iteration
        state.counters.env_steps = iteration * self.settings.shape.steps_per_iteration
        initialise(self.policy, state.parameters, iteration)
        state.first_moment.normal_()
        state.second_moment.uniform_(0, 1)
        slot = iteration % 2
        for env in range(self.settings.env.num_envs):
            size = int(draw.integers(100, 3000))
            memory.state_length[slot, env] = size
            memory.state_bytes[slot, env, :size] = draw.integers(0, 256, size, np.uint8)
        snapshot = state.snapshot()
        environments = snapshot.environments
        copies = {name: rows.copy() for name, rows in environments.rows.items()}
        return snapshot._replace(environments=environments._replace(rows=copies))

    def contents(self, snapshot: Snapshot) -> dict[str, Any]:
        flat = torch.from_numpy(snapshot.arrays["parameters"])
        weights = {
            name: np.ascontiguousarray(view.numpy()) for name, view in views(self.policy, flat).items()
        }
        return {"weights": weights, "metadata": {"format": "parallel_ppo policy 1"},
        "policy_sha256": sha256(self.policy, flat),
                "learning": learning_settings(self.settings)}  # fmt: skip

    def save(self, directory: Path, snapshot: Snapshot, keep: int = 2) -> bool:
        keeper = saving.Keeper(directory, keep=keep, warn=lambda line: None)
        return keeper.save(snapshot, before=lambda: None, is_best=True, **self.contents(snapshot))

    def flat(self, weights: dict[str, np.ndarray]) -> torch.Tensor:
        vector = torch.zeros(len(self.state.parameters))
        for name, view in views(self.policy, vector).items():
            view.copy_(torch.from_numpy(weights[name]))
        return vector

    def expected(self) -> checkpoint.Expected:
        shapes = {name: tuple(view.shape) for name, view in views(self.policy, self.state.parameters).items()}
        return checkpoint.Expected(self.fresh, shapes, learning_settings(self.settings),
                                   lambda weights: sha256(self.policy, self.flat(weights)),
                                   self.state.memory.misfit)  # fmt: skip

    def loaded_iteration(self, directory: Path, candidates: dict[int, Snapshot]) -> int | None:
        """Which of `candidates` the newest valid checkpoint holds, bit for bit; None if there is none or
        it is another.
        """
        found = checkpoint.newest(directory, trust=False, expected=self.expected())
        if found is None:
            return None
        _, snapshot, weights, _ = found
        original = candidates.get(snapshot.counters["iteration"])
        if original is None:
            return None
        packed = original.environments.pack()
        same = all(np.array_equal(original.arrays[name], array) for name, array in snapshot.arrays.items())
        same &= all(np.array_equal(packed[name], array) for name, array in snapshot.environments.items())
        same &= bool(torch.equal(self.flat(weights), torch.from_numpy(original.arrays["parameters"])))
        return snapshot.counters["iteration"] if same else None


# --- cut off at every call ----------------------------------------------------------------------------------

CALLS = ("open", "write", "fsync", "mkdir", "rename", "replace", "symlink", "unlink", "rmdir")
NEED_SPACE = ("open", "write", "fsync", "mkdir", "symlink")


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
            is_hit = number == self.at or (
                self.how == "full" and self.at is not None and number > self.at and name in NEED_SPACE
            )
            if is_hit:
                return self._fail(name, arguments, options)
            return self.real[name](*arguments, **options)

        return call

    def _fail(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name == "write":  # part of it arrives
            self.real[name](arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif self.how == "die after":
            self.real[name](*arguments, **options)
        if self.how.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full" and name not in NEED_SPACE:
            return self.real[name](*arguments, **options)
        number = errno.ENOSPC if self.how == "full" else errno.EIO
        raise OSError(number, os.strerror(number))


def _in_child(action: Callable[[], int]) -> int:
    """Exit code of `action` in a process of its own (negative: the signal that ended it)."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action())
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def interrupt_writing(folder: Path, *, every: int = 1) -> Report:
    """A third checkpoint, with pruning, cut off at every call in four ways; and one that replaces another
    of its step.
    """
    world = World(NATURE)
    first, second, third, again = (world.invent(*which) for which in ((1,), (2,), (3,), (2, 1)))
    reports = [
        _interrupt(world, folder, [first, second], third, every),
        _interrupt(world, folder, [second], again, every),
    ]
    return {
        key: sum((report[key] for report in reports), start=type(reports[0][key])()) for key in reports[0]
    }


def _interrupt(world: World, folder: Path, before: list[Snapshot], saved: Snapshot, every: int) -> Report:
    start = folder / "start"
    shutil.rmtree(start, ignore_errors=True)
    for snapshot in before:
        assert world.save(start, snapshot)
    counted = folder / "counted"
    shutil.rmtree(counted, ignore_errors=True)
    shutil.copytree(start, counted, symlinks=True)

    def count() -> int:
        saboteur = Saboteur(None, "")
        world.save(counted, saved)
        return saboteur.count

    calls = _in_child(count)
    assert 10 < calls < 99, calls
    tried, place = 0, folder / "place"
    problems: list[str] = []
    for how in ("die before", "die after", "full", "one error"):
        for at in range(0, calls, every):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(start, place, symlinks=True)

            def sabotage(at: int = at, how: str = how) -> int:
                Saboteur(at, how)
                return 0 if world.save(place, saved) else 1

            code, tried = _in_child(sabotage), tried + 1
            problems += _problems(world, place, before[-1], saved, f"{how} call {at} (exit {code})", code)
    return {
        "write_calls": calls,
        "interruptions": tried,
        "without_loadable_checkpoint": len(problems),
        "problems": problems[:5],
    }


def _problems(world: World, place: Path, old: Snapshot, new: Snapshot, what: str, code: int) -> list[str]:
    def holds(snapshot: Snapshot) -> bool:
        return world.loaded_iteration(place, {snapshot.counters["iteration"]: snapshot}) is not None

    has_new = holds(new)
    if not (has_new or holds(old)) or code not in (0, 1, -signal.SIGKILL) or (code == 0 and not has_new):
        return [f"{what}: holds neither the old nor the new checkpoint"]
    if not world.save(place, new) or not holds(new):
        return [f"{what}: cannot be saved afterwards"]
    hidden = [path.name for path in place.glob(".*")]
    return [f"{what}: {hidden} stayed"] if hidden else []


# --- a disk that is really full -----------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, kilobytes: int, option: str = "rw") -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    options = f"size={kilobytes}k,{option}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def can_mount(folder: Path) -> bool:
    try:
        with small_disk(folder / "probe", 64):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill_disks(folder: Path, *, step_kilobytes: int = 128) -> Report:
    """Saves a second checkpoint on disks of every size from just too small to enough."""
    if not can_mount(folder):
        return {"skipped": "mounting a tmpfs needs root"}
    world = World(NATURE)
    candidates = {number: world.invent(number) for number in (1, 2)}
    assert world.save(folder / "measured", candidates[1])
    one = sum(file.stat().st_size for file in (folder / "measured").rglob("*") if file.is_file()) // 1024
    problems, refused, sizes = [], 0, range(one + 16, 2 * one + 2 * step_kilobytes, step_kilobytes)
    for size in sizes:
        with small_disk(folder / "disk", size):
            place = folder / "disk" / "checkpoints"
            if not world.save(place, candidates[1]):
                problems.append(f"{size} KiB: the first one does not fit")
                continue
            done = world.save(place, candidates[2])
            refused += not done
            if world.loaded_iteration(place, candidates) != (2 if done else 1):
                problems.append(f"{size} KiB: no loadable checkpoint")
    return {
        "disks": len(sizes),
        "full": refused,
        "without_loadable_checkpoint": len(problems),
        "problems": problems[:5],
    }
