"""The table of memory: every shared array, and what is done with it.

Each `Field` says name, shape, type, who writes it, when it is valid; and whether it is `sampled` into lanes,
`gathered` from all nodes after a collect, or `carried` into the next iteration, and so saved (`carried.py`).
Nothing of this is spelled out again elsewhere. T steps, E envs, S slices, L lanes, P parameters.
"""

from typing import NamedTuple

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.curiosity import rnd, whitening
from parallel_ppo.algorithms.curiosity.models import num_predictor_parameters
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing
from parallel_ppo.workers.native_parts import workers_step

BLOCK = 16384  # parameters per block of the reduction; the gradient norm is summed block by block

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
