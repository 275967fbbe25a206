"""Anonymous shared memory: the slab, the flat parameter vector, the lanes, the saved states of the slices.

One table (`fields`) defines every array: name, shape, type, who writes it and when it is valid. Coordinator and workers build
the same table from the same settings, so only two file descriptors have to be passed. Nothing has a name: nothing can be left
behind by any death. T steps, E envs, S slices, L lanes, P parameters.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing

BLOCK = 16384  # parameters per block of the reduction; the gradient norm is summed block by block
NUM_STATISTICS = 6
PAGE = 4096
POISON = 0xA5


class Field(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str
    writer: str
    valid: str
    sparse: bool = False  # reserved but not touched until needed: never locked or pre-faulted


def fields(settings: Settings, spec: EnvSpec, num_parameters: int) -> list[Field]:
    shape = settings.shape
    t, e, s, lanes, p = shape.num_steps, shape.num_envs, shape.num_slices, shape.num_lanes, num_parameters
    observation, action = spec.observation_shape, (heads.num_components(spec.action),)
    features = spec.vector_shape
    partial = settings.cluster.nnodes > 1  # only this node's part of the widest arrays is ever touched
    return [
        Field(
            "observation",
            (t + 1, e, *observation),
            spec.observation_dtype,
            "worker",
            "after collect",
            partial,
        ),
        Field("action", (t, e, *action), "float32", "worker", "after collect"),
        Field("log_prob", (t, e), "float32", "worker", "after collect"),
        Field("value", (t + 1, e), "float32", "worker", "after collect"),
        Field("reward", (t, e), "float32", "worker", "after collect"),
        Field("episode_start", (t + 1, e), "uint8", "worker", "after collect"),
        Field("truncated", (t, e), "uint8", "worker", "after collect"),
        Field("final_value", (t, e), "float32", "worker", "after collect"),
        Field("level_seed", (t, e), "int32", "worker", "after collect, where episode_start[t + 1]"),
        Field("advantage", (t, e), "float32", "coordinator", "after collect, before the update"),
        Field("target_return", (t, e), "float32", "coordinator", "after collect, before the update"),
        Field("parameters", (p,), "float32", "coordinator", "always; changes only between phases"),
        Field(
            "observation_mean", features, "float32", "coordinator", "always; changes only between iterations"
        ),
        Field(
            "observation_scale", features, "float32", "coordinator", "always; changes only between iterations"
        ),
        Field("lane_gradient", (lanes, p), "float32", "worker", "after gradient", partial),
        Field("lane_statistics", (lanes, NUM_STATISTICS), "float64", "worker", "after gradient"),
        Field("gradient", (p,), "float32", "worker", "after reduce"),
        Field("gradient_squares", (-(-p // BLOCK),), "float64", "worker", "after reduce"),
        Field("evaluation", playing.result_shape(settings), "float64", "worker", "after evaluate"),
        # Two slots: iteration i starts from slot i % 2 and publishes slot (i + 1) % 2, stamp last.
        Field(
            "carry_observation",
            (2, e, *observation),
            spec.observation_dtype,
            "worker",
            "where the stamp says so",
        ),
        Field("carry_start", (2, e), "uint8", "worker", "where the stamp says so"),
        Field("state_length", (2, e), "int64", "worker", "where the stamp says so"),
        Field("state_stamp", (2, s), "int64", "worker", "always; -1 is empty"),
        Field("state_bytes", (2, e, spec.state_bytes), "uint8", "worker", "where the stamp says so", True),
    ]


def _layout(table: list[Field], sparse: bool) -> tuple[dict[str, int], int]:
    offsets, position = {}, 0
    for field in table:
        if field.sparse == sparse:
            offsets[field.name] = position
            size = int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
            position += -(-size // PAGE) * PAGE
    return offsets, max(position, PAGE)


def bytes_needed(settings: Settings, spec: EnvSpec, num_parameters: int) -> int:
    """What will really be touched: the dense part, this node's share of the sparse one, and 64 KB for each saved state."""
    table, nnodes = fields(settings, spec, num_parameters), settings.cluster.nnodes
    dense = _layout(table, sparse=False)[1]
    wide = _layout([field for field in table if field.name != "state_bytes"], sparse=True)[1]
    return dense + -(-wide // nnodes) + 2 * settings.shape.num_envs * min(spec.state_bytes, 65536)


class Memory:
    """All shared arrays as attributes: NumPy views, and the same as torch tensors in `tensor`."""

    observation: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    episode_start: np.ndarray
    truncated: np.ndarray
    final_value: np.ndarray
    level_seed: np.ndarray
    advantage: np.ndarray
    target_return: np.ndarray
    parameters: np.ndarray
    observation_mean: np.ndarray
    observation_scale: np.ndarray
    lane_gradient: np.ndarray
    lane_statistics: np.ndarray
    gradient: np.ndarray
    gradient_squares: np.ndarray
    evaluation: np.ndarray
    carry_observation: np.ndarray
    carry_start: np.ndarray
    state_length: np.ndarray
    state_stamp: np.ndarray
    state_bytes: np.ndarray

    def __init__(
        self,
        settings: Settings,
        spec: EnvSpec,
        num_parameters: int,
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        """Creates the memory, or maps what the coordinator made when `descriptors` are given."""
        table = fields(settings, spec, num_parameters)
        created = descriptors is None
        self.descriptors = descriptors or (os.memfd_create("dense"), os.memfd_create("sparse"))
        self.maps = []
        for descriptor, sparse in zip(self.descriptors, (False, True), strict=True):
            offsets, size = _layout(table, sparse)
            if created:
                os.ftruncate(descriptor, size)
            view = mmap.mmap(descriptor, size)
            self.maps.append(view)
            for field in table:
                if field.sparse == sparse:
                    count = int(np.prod(field.shape, dtype=np.int64))
                    array = np.frombuffer(view, field.dtype, count, offsets[field.name]).reshape(field.shape)
                    setattr(self, field.name, array)
        self.spec, self.table = spec, {field.name: field for field in table}
        if created:
            self.state_stamp.fill(-1)
            self.observation_scale.fill(1)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(getattr(self, name))

    def poison(self) -> None:
        """For tests: what a phase forgets to write stays recognisable."""
        for field in self.table.values():
            if field.valid.startswith("after") and not field.sparse:
                getattr(self, field.name).view(np.uint8).fill(POISON)


def settle(memory: Memory, *, lock: bool, huge_pages: bool) -> dict[str, bool]:
    """Pre-faults the dense part, on huge pages and locked where the limits allow; says which of these worked."""
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
