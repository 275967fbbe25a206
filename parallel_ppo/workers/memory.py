"""Anonymous shared memory: the slab, the flat parameter vector, the lanes, the saved states of the
environments.

One table (`fields`) defines every array: name, shape, type, who writes it, when it is valid; and whether
it is `sampled` into lanes, `gathered` from all nodes after a collect, or `carried` into the next
iteration, and so saved (`carried.py`). Nothing of this is spelled out again elsewhere. Coordinator and
workers build the same table from the same settings, so only file descriptors have to be passed: one for
what is always touched, one for what is not (`sparse`), and with `hardware.buffers: file` one for the slabs.
Nothing has a name: nothing can be left behind by any death.
T steps, E envs, S slices, L lanes, P parameters.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.curiosity import rnd, whitening
from parallel_ppo.algorithms.curiosity.models import num_predictor_parameters
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import InputError
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import buffer_file, playing
from parallel_ppo.workers.native_parts import workers_step

BLOCK = 16384  # parameters per block of the reduction; the gradient norm is summed block by block
PAGE = 4096
POISON = 0xA5


# Who writes a field, and when it is valid.
COLLECTED = "worker", "after collect"
AT_AN_END = "worker", "after collect, where episode_start[t + 1]"
LEVEL_PLAYED = "worker", AT_AN_END[1] + "; with prioritized levels also in the last row"
REVALUED = "worker", "after revalue"
TARGET = "coordinator", "after collect, before the update"
PUBLISHED = "coordinator", "always; changes only between iterations"
CARRIED = "worker", "where the stamp says so"
ROUND = "coordinator", "always; changes only between rounds"
PLANNED = "coordinator", "in the steps of an update"
STEPPED = "worker", "in the steps of an update"
MAX_SCALARS = 32  # of an algorithm, for a minibatch


class Field(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str
    writer: str
    valid: str
    slab: bool = False  # one for each rollout that is kept: the array has a leading axis for them
    sampled: bool = False  # [T(+1), E, ...]: a lane's batch holds its samples
    gathered: bool = False  # [T(+1), E]: every node needs all columns
    carried: bool = False  # [slot, E, ...]: where an iteration starts
    used_length: str = ""  # of a carried field: the field that says how much of a row is used
    sparse: bool = False  # reserved but not touched until needed: never locked or pre-faulted
    in_file: bool = False  # on a disk, because the run is larger than the memory

    @property
    def place(self) -> str:
        return "file" if self.in_file else "sparse" if self.sparse else "dense"


def fields(settings: Settings, spec: EnvSpec, num_parameters: int) -> list[Field]:
    """`num_parameters` is the policy's."""
    shape = settings.shape
    slots, versions = shape.num_slots, shape.num_versions
    revalues = ALGORITHMS[settings.training.algorithm].revalues
    t, e, s, lanes = shape.num_steps, shape.num_envs, shape.num_slices, shape.num_lanes
    p, end = num_all_parameters(settings, spec, num_parameters), policy_end(settings, num_parameters)
    observation, action = spec.observation_shape, (heads.num_components(spec.action),)
    choices, masks = heads.num_outputs(spec.action), spec.masks_actions
    features, blocks, statistics = spec.vector_shape, -(-p // BLOCK), len(Statistics._fields)
    levels = settings.env.num_levels if settings.env.level_sampler == "plr" else 0
    items = max(lanes, blocks)  # of a round: lanes, or blocks to sum
    partial = settings.cluster.nnodes > 1  # only this node's part of the widest arrays is ever touched
    table = [
        Field("observation", (t + 1, e, *observation), spec.observation_dtype, *COLLECTED, sampled=True,
            sparse=partial, slab=True),
        Field("action", (t, e, *action), "float32", *COLLECTED, sampled=True, slab=True),
        Field("action_mask", (t, e, choices if masks else 0), "uint8", *COLLECTED, sampled=masks, slab=True),
        Field("log_prob", (t, e), "float32", *COLLECTED, sampled=True, gathered=revalues, slab=True),
        Field("value", (t + 1, e), "float32", *COLLECTED, sampled=True, gathered=True, slab=True),
        Field("reward", (t, e), "float32", *COLLECTED, gathered=True, slab=True),
        Field("episode_start", (t + 1, e), "uint8", *COLLECTED, gathered=True, slab=True),
        Field("truncated", (t, e), "uint8", *COLLECTED, gathered=True, slab=True),
        Field("final_value", (t, e), "float32", *COLLECTED, gathered=True, slab=True),
        Field("level_seed", (t, e), "int32", *LEVEL_PLAYED, gathered=True, slab=True),
        Field("level_complete", (t, e), "int8", *AT_AN_END, gathered=True, slab=True),
        Field("advantage", (t, e), "float32", *TARGET, sampled=True, slab=True),
        Field("target_return", (t, e), "float32", *TARGET, sampled=True, slab=True),
        Field("learner_value", (t + 1, e) if revalues else (0, 0), "float32", *REVALUED, gathered=revalues,
            slab=True),
        Field("learner_log_prob", (t, e) if revalues else (0, 0), "float32", *REVALUED, gathered=revalues,
            slab=True),
        Field("parameters", (p,), "float32", "coordinator", "always; changes only between phases"),
        Field("observation_mean", features, "float32", *PUBLISHED),
        Field("observation_scale", features, "float32", *PUBLISHED),
        Field("level_chances", (levels,), "float64", *PUBLISHED),
        Field("versions", (versions, p), "float32", *PUBLISHED),
        Field("version_mean", (versions, *features), "float32", *PUBLISHED),
        Field("version_scale", (versions, *features), "float32", *PUBLISHED),
        Field("version_level_chances", (versions, levels), "float64", *PUBLISHED),
        Field("lane_gradient", (lanes, end), "float32", "worker", "after gradient", sparse=partial),
        Field("predictor_gradient", (s * shape.teaching_lanes, p - end), "float32", "worker", "after gradient",
            sparse=partial),
        Field("lane_statistics", (lanes, statistics), "float64", "worker", "after gradient"),
        Field("gradient", (p,), "float32", "worker", "after reduce"),
        Field("gradient_squares", (blocks,), "float64", "worker", "after reduce"),
        Field("round_header", (1,), "int64", *ROUND),
        Field("round_bell", (1,), "uint32", *ROUND),
        Field("round_kind", (2,), "int64", *ROUND),
        Field("round_tasks", (items, 4), "int64", *ROUND),
        Field("round_scalars", (MAX_SCALARS,), "float64", *ROUND),
        Field("round_claims", (items,), "int64", "both", "always; see kernels/rounds.c"),
        Field("round_times", (items, 2), "float64", "worker", "when its item is done"),
        *_step_fields(settings, p),
        Field("steps_done", (s,), "int64", "worker", "always; in the collect of this iteration"),
        Field("evaluation", playing.result_shape(settings), "float64", "worker", "after evaluate"),
        Field("state_stamp", (slots, s), "int64", "worker", "always; -1 is empty"),
        Field("carry_observation", (slots, e, *observation), spec.observation_dtype, *CARRIED, carried=True),
        Field("carry_start", (slots, e), "uint8", *CARRIED, carried=True),
        Field("state_length", (slots, e), "int64", *CARRIED, carried=True),
        Field("state_bytes", (slots, e, spec.state_bytes), "uint8", *CARRIED, carried=True,
            used_length="state_length", sparse=True),
        *_curiosity_fields(settings, spec),
    ]  # fmt: skip
    in_file = settings.hardware.buffers == "file"
    return [
        field._replace(shape=(shape.num_slabs, *field.shape), in_file=in_file) if field.slab else field
        for field in table
    ]


def _step_fields(settings: Settings, p: int) -> list[Field]:
    """Empty where the coordinator steps."""
    shape, does = settings.shape, workers_step(settings, p)
    blocks, steps = -(-p // BLOCK), shape.num_epochs * shape.num_minibatches if does else 0
    items, samples = shape.num_lanes + 3 * blocks, shape.num_steps * shape.slice_envs
    return [
        Field("first_moment", (p,), "float32", "both", "always; changes only between phases"),
        Field("second_moment", (p,), "float32", "both", "always; changes only between phases"),
        Field("stepped", (3, p if does else 0), "float32", *STEPPED),
        Field("step_header", (1,), "int64", "both", "always; see kernels/steps.c"),
        Field("step_bell", (1,), "uint32", "both", "always; see kernels/steps.c"),
        Field("step_claims", (max(shape.num_lanes, blocks) if does else 0,), "int64", "both",
            "always; see kernels/claims.h"),
        Field("step_rows", (shape.num_epochs if does else 0, shape.num_slices, samples), "int64", *PLANNED),
        Field("step_scalars", (steps, MAX_SCALARS), "float64", *PLANNED),
        Field("step_rates", (steps, 2), "float64", *PLANNED),
        Field("step_results", (steps, len(Statistics._fields) + 2), "float64", *STEPPED),
        Field("step_times", (steps * items, 3), "float64", *STEPPED),
    ]  # fmt: skip


def _curiosity_fields(settings: Settings, spec: EnvSpec) -> list[Field]:
    """Empty where they are not needed."""
    shape, chosen = settings.shape, settings.curiosity
    t, e, s = shape.num_steps, shape.num_envs, shape.num_slices
    is_curious, has_value = chosen.is_curious, chosen.num_values == 2
    num_elements = whitening.num_elements(spec) if is_curious else 0
    target = rnd.num_outputs(settings, spec) if chosen.has_target else 0
    nothing = (0, 0)
    return [
        Field("intrinsic_reward", (t, e) if is_curious else nothing, "float32", *COLLECTED, slab=True,
            gathered=is_curious),
        Field("intrinsic_value", (t + 1, e) if has_value else nothing, "float32", *COLLECTED, slab=True,
            gathered=has_value),
        Field("intrinsic_return", (t, e) if has_value else nothing, "float32", *TARGET, slab=True,
            sampled=has_value),
        Field("bonus", (t, e) if is_curious and not has_value else nothing, "float32", *TARGET, slab=True),
        Field("target_features", (t, e, target), "float32", *COLLECTED, slab=True,
            sparse=settings.cluster.nnodes > 1),
        Field("observation_moments", (s, 2, num_elements), "float64", *COLLECTED),
        Field("whitening_mean", (num_elements,), "float32", *PUBLISHED),
        Field("whitening_scale", (num_elements,), "float32", *PUBLISHED),
        *_episodic_fields(settings),
    ]  # fmt: skip


def _episodic_fields(settings: Settings) -> list[Field]:
    shape, chosen, has = settings.shape, settings.curiosity, settings.curiosity.kind == "ngu"
    slots, e, numbers = shape.num_slots, shape.num_envs, chosen.ngu_memory * chosen.ngu_embedding
    return [
        Field("novelty", (shape.num_steps, e) if has else (0, 0), "float32", *COLLECTED, slab=True,
            gathered=has),
        Field("episodic_size", (1, e) if has else (0, 0), "float32", *COLLECTED, slab=True, gathered=has),
        Field("novelty_scale", (2,), "float32", *PUBLISHED),
        Field("episodic_memory", (slots, e, numbers if has else 0), "float32", *CARRIED, carried=has,
            used_length="episodic_used", sparse=True),
        Field("episodic_used", (slots, e), "int64", *CARRIED, carried=has),
        Field("episodic_next", (slots, e), "int64", *CARRIED, carried=has),
        Field("episodic_distance", (slots, e, 2), "float64", *CARRIED, carried=has),
    ]  # fmt: skip


def policy_end(settings: Settings, num_parameters: int) -> int:
    """Where the policy ends in the flat vector and predictors begin: whole blocks, for norms of their own."""
    return -(-num_parameters // BLOCK) * BLOCK if settings.curiosity.is_curious else num_parameters


def num_all_parameters(settings: Settings, spec: EnvSpec, num_parameters: int) -> int:
    """Of the flat vector: the policy's and curiosity's."""
    return policy_end(settings, num_parameters) + num_predictor_parameters(settings, spec)


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
