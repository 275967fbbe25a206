"""The memory of a run: all its tables, and what their sizes follow from."""

from typing import Any

import numpy as np

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.features import feature_tables
from parallel_ppo.kernels.steps import NUM_VERDICT_COLUMNS
from parallel_ppo.memory import shared
from parallel_ppo.memory.arrays import BLOCK, MAX_SCALARS
from parallel_ppo.memory.table import Array, Table, resolve
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing


def arrays_of(settings: Settings, spec: EnvSpec, num_parameters: int) -> list[Array]:
    """`num_parameters` is the policy's."""
    tables: list[type[Table]] = [*shared.CORE, *feature_tables(settings)]
    return resolve(tables, settings, spec, _sizes(settings, spec, num_parameters))


def policy_end(settings: Settings, num_parameters: int) -> int:
    """The policy's part of the flat vector. It is whole blocks if predictors follow, so that both parts have a norm."""
    return -(-num_parameters // BLOCK) * BLOCK if settings.curiosity.is_curious else num_parameters


def _sizes(settings: Settings, spec: EnvSpec, num_parameters: int) -> dict[str, Any]:
    sizes, end = settings.sizes, policy_end(settings, num_parameters)
    predictors = 0
    if settings.curiosity.is_curious:
        from parallel_ppo.features.curiosity import num_predictor_parameters  # only runs that need it load it

        predictors = num_predictor_parameters(settings, spec)
    p = end + predictors
    blocks, steps = -(-p // BLOCK), sizes.num_optimizer_steps
    return {
        "T": sizes.num_steps,
        "E": sizes.num_envs,
        "S": sizes.num_slices,
        "P": p,
        "policy": end,
        "predictors": predictors,
        "blocks": blocks,
        "slots": sizes.num_slots,
        "state": spec.state_bytes,
        "observation": spec.observation_shape,
        "observations": spec.observation_dtype,
        "vector": spec.vector_shape,
        "info": len(settings.env.info_keys),
        "action": heads.num_components(spec.action),
        "choices": heads.num_outputs(spec.action) if spec.masks_actions else 0,
        "revalues": ALGORITHMS[settings.training.algorithm].revalues,
        "evaluation": playing.result_shape(settings),
        "microbatches": sizes.num_microbatches,
        "predictor_microbatches": sizes.num_slices * sizes.predictor_microbatches,
        "statistics": len(Statistics._fields),
        "scalars": MAX_SCALARS,
        "stepped": 0 if sizes.num_actors else p,
        "steps": steps,
        "epochs": sizes.num_epochs,
        "claims": max(sizes.num_microbatches, blocks),
        "samples": sizes.num_steps * sizes.slice_envs,
        "results": len(Statistics._fields) + NUM_VERDICT_COLUMNS,
        "times": steps * (sizes.num_microbatches + 3 * blocks),
    }


class Memory(shared.SharedMemory):
    def __init__(
        self,
        settings: Settings,
        spec: EnvSpec,
        num_parameters: int,
        descriptors: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(settings, arrays_of(settings, spec, num_parameters), descriptors)
        self.spec, self.policy_end = spec, policy_end(settings, num_parameters)

    def saved(self) -> dict[str, np.ndarray]:
        policy, predictors = np.split(self.parameters, [self.policy_end])
        own = {"curiosity.parameters": predictors} if predictors.size else {}
        return {"parameters": policy, **own, **super().saved()}
