"""Whole microbatches in the C library: PPO with two MLPs, the case in which calls cost more than arithmetic."""

from parallel_ppo.algorithms import ALGORITHMS, ppo
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.native_microbatch import MicrobatchLoss, NativeMicrobatch
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.native_parts import computes_whole_microbatches


def make_native_microbatch(settings: Settings, spec: EnvSpec, actor: Actor) -> NativeMicrobatch | None:
    training, network, sizes = settings.training, actor.network, settings.sizes
    is_clipped_loss = ALGORITHMS[training.algorithm].loss_gradient is ppo.loss_gradient
    if not (
        computes_whole_microbatches(settings, spec) and is_clipped_loss and isinstance(network, NativeMlp)
    ):
        return None
    parameters, mean, scale = actor.tensors
    loss = MicrobatchLoss(
        training.value_coef, training.entropy_coef, sizes.learned_together, training.clip_value_loss
    )
    normalisation = (mean, scale, training.observation_clip) if training.normalize_observations else None
    return NativeMicrobatch(
        network.address, *network.offsets(parameters), loss, normalisation, max(sizes.microbatch_sizes)
    )
