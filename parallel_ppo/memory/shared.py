"""Anonymous shared memory that holds the declared arrays of a run.

Coordinator and workers resolve the same tables from the same settings, so only file descriptors have to be
passed: one for what is always touched, one for what is not (`sparse`), and with `hardware.buffers: file` one for
the rollouts. Nothing has a name: nothing can be left behind by any death.
"""

import ctypes
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from parallel_ppo.exits import InputError
from parallel_ppo.memory.arrays import (
    EnvironmentStart,
    Gradients,
    Learner,
    OptimizerSteps,
    Progress,
    RolloutBuffer,
)
from parallel_ppo.memory.table import Array, Rollout, Start, State
from parallel_ppo.settings.schema import Settings

PAGE = 4096
POISON = 0xA5
LONGEST_STATE = 65536  # bytes of an environment's state that an estimate assumes at most
CORE = RolloutBuffer, EnvironmentStart, Learner, Progress, Gradients, OptimizerSteps


def _places(settings: Settings) -> tuple[str, ...]:
    """Each is one descriptor and one mapping."""
    return ("dense", "sparse", "file") if settings.hardware.buffers == "file" else ("dense", "sparse")


def _layout(arrays: Sequence[Array], place: str) -> tuple[dict[str, int], int]:
    offsets, position = {}, 0
    for one in arrays:
        if one.place == place:
            offsets[one.name] = position
            position += -(-one.num_bytes // PAGE) * PAGE
    return offsets, max(position, PAGE)


def touched_bytes(arrays: Sequence[Array], settings: Settings) -> int:
    """The memory that will really be used: the dense arrays, this node's part of the sparse ones, and the
    likely length of the environments' states. Arrays in a file need none.
    """
    dense = _layout(arrays, "dense")[1]
    wide = _layout([one for one in arrays if one.name != "state_bytes"], "sparse")[1]
    states = sum(
        int(np.prod(one.shape[:2])) * min(one.shape[2], LONGEST_STATE)
        for one in arrays
        if one.name == "state_bytes"
    )
    return dense + -(-wide // settings.cluster.nnodes) + states


def file_bytes(arrays: Sequence[Array], settings: Settings) -> int:
    return _layout(arrays, "file")[1] if settings.hardware.buffers == "file" else 0


def saved_bytes(arrays: Sequence[Array]) -> int:
    """About the size of a checkpoint."""
    found = 0
    for one in arrays:
        if one.saved or one.name == "parameters":
            found += one.num_bytes
        elif one.kind is Start:
            found += (
                one.num_bytes // one.shape[0]
                if one.name != "state_bytes"
                else (one.shape[1] * min(one.shape[2], LONGEST_STATE))
            )
    return found


class SharedMemory(RolloutBuffer, EnvironmentStart, Learner, Progress, Gradients, OptimizerSteps):
    """All arrays of a run as attributes: NumPy views, and the same as torch tensors in `tensor`. Is its own
    first rollout.
    """

    def __init__(
        self, settings: Settings, arrays: Sequence[Array], descriptors: tuple[int, ...] | None = None
    ) -> None:
        """Creates the memory, or maps what the coordinator made when `descriptors` are given."""
        created, places = descriptors is None, _places(settings)
        layouts = {place: _layout(arrays, place) for place in places}
        directory = settings.hardware.buffer_directory
        self.descriptors = descriptors or tuple(
            reserve_file(directory, size) if place == "file" and directory else os.memfd_create(place)
            for place, (_, size) in layouts.items()
        )
        self.maps = []
        self.sizes = settings.sizes
        self.table = {one.name: one for one in arrays}
        self.rollouts = [self, *(RolloutBuffer() for _ in range(settings.sizes.lag))]
        for rollout in self.rollouts:
            rollout.rollout_arrays = [one for one in arrays if one.kind is Rollout]
        for descriptor, place in zip(self.descriptors, places, strict=True):
            offsets, size = layouts[place]
            view = _mapped(descriptor, size, created)
            self.maps.append(view)
            for one in arrays:
                if one.place == place:
                    count = int(np.prod(one.shape, dtype=np.int64))
                    whole = np.frombuffer(view, one.dtype, count, offsets[one.name]).reshape(one.shape)
                    for rollout, own in zip(
                        self.rollouts, whole if one.kind is Rollout else [whole], strict=False
                    ):
                        setattr(rollout, one.name, own)
                    if created and one.initial:
                        whole.fill(one.initial)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(getattr(self, name))

    def rollout(self, iteration: int) -> RolloutBuffer:
        return self.rollouts[iteration % len(self.rollouts)]

    def share_collected(self, slices: range) -> float:
        """The share of the present collect that is done."""
        done = int(self.steps_done[slices.start : slices.stop].sum())
        return done / (self.sizes.num_steps * max(1, len(slices)))

    def slot(self, iteration: int) -> int:
        return iteration % len(self.state_stamp)

    # --- versions -------------------------------------------------------------------------------------------

    def keep_version(self, row: int) -> None:
        """Copies everything that collection acts with."""
        for one in self.table.values():
            if one.versioned:
                getattr(self, one.versioned)[row] = getattr(self, one.name)

    def acting(self, name: str, slice_index: int, iteration: int) -> np.ndarray:
        """A versioned array as it is where the slice collects this iteration."""
        if not self.sizes.num_versions:
            return getattr(self, name)
        row = self.sizes.version_row(slice_index, iteration)
        return getattr(self, self.table[name].versioned)[row, ...]  # an array even where it has no axes

    # --- saving ---------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, np.ndarray]:
        """Views of all state that is saved, by names in a checkpoint; of lists only the part that is used."""
        found = {}
        for one in self._saved_arrays():
            whole = getattr(self, one.name)
            found[one.saved] = whole[: int(getattr(self, one.used))] if one.used else whole
        return found

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """In place: the C library and the workers know these arrays by address."""
        for one in self._saved_arrays():
            if one.used:
                getattr(self, one.name).fill(one.initial)
                getattr(self, one.used)[...] = len(arrays[one.saved])
        for name, view in self.saved().items():
            view[...] = arrays[name]

    def misfit(self, arrays: dict[str, np.ndarray]) -> str | None:
        """The problem with saved state that is to be restored, or None."""
        declared = {one.saved: one for one in self._saved_arrays()}
        for name, view in self.saved().items():
            found, one = arrays.get(name), declared.get(name)
            if found is None or found.dtype != view.dtype:
                return f"{name} does not fit this run"
            is_list = one is not None and one.used and found.ndim == 1 and len(found) <= one.shape[0]
            if not is_list and found.shape != view.shape:
                return f"{name} does not fit this run"
            if not np.isfinite(found).all() or (one is not None and (found < one.least).any()):
                return f"{name} holds impossible numbers"
        return None

    def _saved_arrays(self) -> list[Array]:
        return [one for one in self.table.values() if one.kind is State and one.saved]

    def poison(self) -> None:
        """For tests: an array that a phase forgets to write stays recognizable."""
        for one in self.table.values():
            if one.written and one.place != "sparse":
                getattr(self, one.name).view(np.uint8).fill(POISON)


def reserve_file(directory: str, size: int) -> int:
    """The descriptor of a new file for rollouts that are larger than the memory.

    It has no name, so no death leaves it behind. Its blocks are reserved now: touching a page that the disk has
    no room for would kill the process.
    """
    try:
        free = shutil.disk_usage(directory).free
        if free < size:
            raise InputError(
                f"hardware.buffer_directory: the rollout buffers need {size:,} bytes of disk but {free:,} are"
                f" free in {directory}: free some space, give another directory, or use fewer environments or"
                " steps"
            )
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return os.dup(file.fileno())
    except OSError as error:
        raise InputError(
            f"hardware.buffer_directory: {size:,} bytes cannot be reserved in {directory} ({error.strerror});"
            " give another directory, or use fewer environments or steps"
        ) from None


def _mapped(descriptor: int, size: int, created: bool) -> mmap.mmap:
    try:
        if created:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    except (OSError, MemoryError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the shared memory of this run ({size:,} bytes) cannot be made ({reason}): raise the limits of"
            " this shell (`ulimit -f`, `ulimit -v`), or use fewer environments or steps"
        ) from None


def prefault_and_lock(memory: SharedMemory, *, lock: bool, huge_pages: bool) -> dict[str, bool]:
    """Pre-faults the dense fields, on huge pages and locked where the limits allow; returns which of
    these worked.
    """
    view = memory.maps[0]
    outcome = {"huge_pages": huge_pages and _advise_huge(view), "prefaulted": True, "locked": False}
    array = np.frombuffer(view, np.uint8)
    array[::PAGE] |= 0
    if lock:
        library = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(array.ctypes.data)
        outcome["locked"] = library.mlock(address, ctypes.c_size_t(len(view))) == 0
    return outcome


def _advise_huge(view: mmap.mmap) -> bool:
    """The kernel accepts the advice even where it will not follow it, so its setting is read too."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    try:
        allowed = any(
            f"[{word}]" in setting.read_text() for word in ("advise", "always", "within_size", "force")
        )
        view.madvise(mmap.MADV_HUGEPAGE)
        return allowed
    except (OSError, AttributeError):
        return False
