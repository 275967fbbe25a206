"""Whole lanes in the C library: PPO with two MLPs, the case in which calls cost more than arithmetic."""

from parallel_ppo.algorithms import ALGORITHMS, ppo
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.native_lane import MAX_LAYERS, LaneLoss, LaneShape, NativeLane
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.settings.schema import Settings


def computes_whole_lanes(settings: Settings, spec: EnvSpec) -> bool:
    """Otherwise they are computed step by step (`Worker.differentiate`); the bits are the same."""
    training = settings.training
    return (
        training.policy == "mlp"
        and training.kernels == "native"
        and ALGORITHMS[training.algorithm].loss_gradient is ppo.loss_gradient
        and spec.action.kind in ("categorical", "gaussian")
        and not spec.masks_actions
        and spec.observation_dtype == "float32"
        and training.augmentation == "none"
        and not settings.curiosity.is_curious
        and len(training.hidden_sizes) <= MAX_LAYERS
    )


def make_native_lane(settings: Settings, spec: EnvSpec, actor: Actor) -> NativeLane | None:
    training, network, shape = settings.training, actor.network, settings.shape
    if not computes_whole_lanes(settings, spec) or not isinstance(network, NativeMlp):
        return None
    parameters, mean, scale = actor.tensors
    is_gaussian = spec.action.kind == "gaussian"
    offsets, log_std_offset = network.offsets(parameters)
    lane = LaneShape(
        sizes=list(network.native.sizes),
        offsets=offsets,
        num_outputs=network.native.num_outputs,
        choices=[] if is_gaussian else spec.action.sizes,
        log_std_offset=log_std_offset,
    )
    loss = LaneLoss(
        training.value_coef, training.entropy_coef, shape.learned_together, training.clip_value_loss
    )
    normalisation = (mean, scale, training.observation_clip) if training.normalize_observations else None
    return NativeLane(lane, loss, parameters, network.native.packed, normalisation, max(shape.lane_sizes))
