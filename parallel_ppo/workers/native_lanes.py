"""Whole lanes in the C library: PPO with two MLPs, the case in which calls cost more than arithmetic."""

from parallel_ppo.algorithms import ALGORITHMS, ppo
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.native_lane import MAX_LAYERS, LaneLoss, LaneShape, NativeLane
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.settings.schema import Settings


def make_native_lane(settings: Settings, spec: EnvSpec, actor: Actor) -> NativeLane | None:
    """None where lanes are computed step by step (`Worker.gradient`); the bits are the same."""
    training, network, shape = settings.training, actor.network, settings.shape
    if (
        not isinstance(network, NativeMlp)
        or ALGORITHMS[training.algorithm].loss_gradient is not ppo.loss_gradient
        or spec.action.kind not in ("categorical", "gaussian")
        or spec.masks_actions
        or spec.observation_dtype != "float32"
        or training.augmentation != "none"
        or settings.curiosity.is_curious
        or len(training.hidden_sizes) > MAX_LAYERS
    ):
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
