"""Whole lanes in the C library: PPO with two MLPs, the case in which calls cost more than arithmetic."""

from parallel_ppo.algorithms import ALGORITHMS, ppo
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.native_lane import LaneLoss, NativeLane
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.native_parts import computes_whole_lanes


def make_native_lane(settings: Settings, spec: EnvSpec, actor: Actor) -> NativeLane | None:
    training, network, shape = settings.training, actor.network, settings.shape
    is_clipped_loss = ALGORITHMS[training.algorithm].loss_gradient is ppo.loss_gradient
    if not (computes_whole_lanes(settings, spec) and is_clipped_loss and isinstance(network, NativeMlp)):
        return None
    parameters, mean, scale = actor.tensors
    loss = LaneLoss(
        training.value_coef, training.entropy_coef, shape.learned_together, training.clip_value_loss
    )
    normalisation = (mean, scale, training.observation_clip) if training.normalize_observations else None
    return NativeLane(
        network.address, *network.offsets(parameters), loss, normalisation, max(shape.lane_sizes)
    )
