"""Anonymous shared memory: the slab, the flat parameter vector, the lanes, the saved states of the
environments.

Coordinator and workers build the same table (`memory_table.py`) from the same settings, so only file
descriptors have to be passed: one for what is always touched, one for what is not (`sparse`), and with
`hardware.buffers: file` one for the slabs. Nothing has a name: nothing can be left behind by any death.
"""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import InputError
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import buffer_file
from parallel_ppo.workers.memory_table import Field, fields, policy_end

PAGE = 4096
POISON = 0xA5


def _places(settings: Settings) -> tuple[str, ...]:
    """Each is one descriptor and one mapping."""
    return ("dense", "sparse", "file") if settings.hardware.buffers == "file" else ("dense", "sparse")


def _layout(table: list[Field], place: str) -> tuple[dict[str, int], int]:
    offsets, position = {}, 0
    for field in table:
        if field.place == place:
            offsets[field.name] = position
            size = int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
            position += -(-size // PAGE) * PAGE
    return offsets, max(position, PAGE)


def bytes_needed(settings: Settings, spec: EnvSpec, num_parameters: int) -> int:
    """What will really be touched: the dense fields, this node's part of the sparse ones, and 64 KB for
    each saved state. What lies in a file needs no memory.
    """
    table, nnodes = fields(settings, spec, num_parameters), settings.cluster.nnodes
    dense = _layout(table, "dense")[1]
    wide = _layout([field for field in table if field.name != "state_bytes"], "sparse")[1]
    return (
        dense
        + -(-wide // nnodes)
        + settings.shape.num_slots * settings.shape.num_envs * min(spec.state_bytes, 65536)
    )


def file_bytes_needed(settings: Settings, spec: EnvSpec, num_parameters: int) -> int:
    if settings.hardware.buffers != "file":
        return 0
    return _layout(fields(settings, spec, num_parameters), "file")[1]


class Slab:
    """One rollout: the fields of the table that are marked so, as NumPy views."""

    observation: np.ndarray
    action: np.ndarray
    action_mask: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    episode_start: np.ndarray
    truncated: np.ndarray
    final_value: np.ndarray
    level_seed: np.ndarray
    level_complete: np.ndarray
    advantage: np.ndarray
    target_return: np.ndarray
    learner_value: np.ndarray
    learner_log_prob: np.ndarray
    intrinsic_reward: np.ndarray
    intrinsic_value: np.ndarray
    intrinsic_return: np.ndarray
    bonus: np.ndarray
    target_features: np.ndarray
    novelty: np.ndarray
    episodic_size: np.ndarray
    fields: list[Field]

    def sampled_rows(self) -> dict[str, torch.Tensor]:
        """The sampled fields as [T * E, ...]."""
        steps, envs = self.reward.shape
        names = [field.name for field in self.fields if field.sampled]
        columns = {name: torch.from_numpy(getattr(self, name))[:steps] for name in names}
        return {name: column.reshape(steps * envs, *column.shape[2:]) for name, column in columns.items()}

    def gathered_columns(self) -> list[np.ndarray]:
        return [getattr(self, field.name) for field in self.fields if field.gathered]


class Memory(Slab):
    """All shared arrays as attributes: NumPy views, and the same as torch tensors in `tensor`. Is its own
    first slab.
    """

    parameters: np.ndarray
    observation_mean: np.ndarray
    observation_scale: np.ndarray
    level_chances: np.ndarray
    versions: np.ndarray
    version_mean: np.ndarray
    version_scale: np.ndarray
    version_level_chances: np.ndarray
    lane_gradient: np.ndarray
    predictor_gradient: np.ndarray
    lane_statistics: np.ndarray
    gradient: np.ndarray
    gradient_squares: np.ndarray
    round_header: np.ndarray
    round_bell: np.ndarray
    round_kind: np.ndarray
    round_tasks: np.ndarray
    round_scalars: np.ndarray
    round_claims: np.ndarray
    round_times: np.ndarray
    first_moment: np.ndarray
    second_moment: np.ndarray
    stepped: np.ndarray
    step_header: np.ndarray
    step_bell: np.ndarray
    step_claims: np.ndarray
    step_rows: np.ndarray
    step_scalars: np.ndarray
    step_rates: np.ndarray
    step_results: np.ndarray
    step_times: np.ndarray
    steps_done: np.ndarray
    evaluation: np.ndarray
    state_stamp: np.ndarray
    carry_observation: np.ndarray
    carry_start: np.ndarray
    state_length: np.ndarray
    state_bytes: np.ndarray
    observation_moments: np.ndarray
    whitening_mean: np.ndarray
    whitening_scale: np.ndarray
    novelty_scale: np.ndarray
    episodic_memory: np.ndarray
    episodic_used: np.ndarray
    episodic_next: np.ndarray
    episodic_distance: np.ndarray

    def __init__(
        self,
        settings: Settings,
        spec: EnvSpec,
        num_parameters: int,
        descriptors: tuple[int, ...] | None = None,
    ) -> None:
        """Creates the memory, or maps what the coordinator made when `descriptors` are given."""
        table = fields(settings, spec, num_parameters)
        created, places = descriptors is None, _places(settings)
        layouts = {place: _layout(table, place) for place in places}
        directory = settings.hardware.buffer_directory
        self.descriptors = descriptors or tuple(
            buffer_file.reserve(directory, size) if place == "file" and directory else os.memfd_create(place)
            for place, (_, size) in layouts.items()
        )
        self.maps = []
        self.slabs = [self, *(Slab() for _ in range(settings.shape.lag))]
        for slab in self.slabs:
            slab.fields = [field for field in table if field.slab]
        for descriptor, place in zip(self.descriptors, places, strict=True):
            offsets, size = layouts[place]
            view = _mapped(descriptor, size, created)
            self.maps.append(view)
            for field in table:
                if field.place == place:
                    count = int(np.prod(field.shape, dtype=np.int64))
                    array = np.frombuffer(view, field.dtype, count, offsets[field.name]).reshape(field.shape)
                    for slab, own in zip(self.slabs, array if field.slab else [array], strict=False):
                        setattr(slab, field.name, own)
        self.num_steps = settings.shape.num_steps
        self.policy_end = policy_end(settings, num_parameters)
        self.spec, self.table = spec, {field.name: field for field in table}
        if created:
            self.state_stamp.fill(-1)
            self.observation_scale.fill(1)
            self.version_scale.fill(1)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(getattr(self, name))

    def slab(self, iteration: int) -> Slab:
        return self.slabs[iteration % len(self.slabs)]

    def share_collected(self, slices: range) -> float:
        """How much of the present collect is done."""
        done = int(self.steps_done[slices.start : slices.stop].sum())
        return done / (self.num_steps * max(1, len(slices)))

    def slot(self, iteration: int) -> int:
        return iteration % len(self.state_stamp)

    def poison(self) -> None:
        """For tests: what a phase forgets to write stays recognisable."""
        for field in self.table.values():
            if field.valid.startswith("after") and field.place != "sparse":
                getattr(self, field.name).view(np.uint8).fill(POISON)


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


def settle(memory: Memory, *, lock: bool, huge_pages: bool) -> dict[str, bool]:
    """Pre-faults the dense fields, on huge pages and locked where the limits allow; says which of these
    worked.
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
