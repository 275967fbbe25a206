"""Whether the C library computes whole microbatches. It follows from the settings, without torch, so that plans can be
made with it before anything starts.
"""

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.settings.schema import Settings

MAX_LAYERS = 15  # MAX_POINTERS of microbatch.h
CLIPPED_LOSS = ("ppo", "appo")


def computes_whole_microbatches(settings: Settings, spec: EnvSpec) -> bool:
    """Otherwise they are computed step by step (`Worker.differentiate`); the bits are the same."""
    training = settings.training
    return (
        training.policy == "mlp"
        and training.kernels == "native"
        and training.algorithm in CLIPPED_LOSS
        and spec.action.kind in ("categorical", "gaussian")
        and not spec.masks_actions
        and spec.observation_dtype == "float32"
        and training.augmentation == "none"
        and not settings.curiosity.is_curious
        and len(training.hidden_sizes) <= MAX_LAYERS
    )
