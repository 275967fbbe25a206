"""What of an update the C library does by itself. It follows from the settings, without torch, so that plans
can be made with it before anything starts.
"""

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.settings.schema import Settings

MOST_STEPPED = 1 << 22  # parameters that are kept twice, so that workers can step
MOST_ROWS = 1 << 24  # samples of all epochs whose order is kept for them
MAX_LAYERS = 15  # MAX_POINTERS of lane.h
CLIPPED_LOSS = ("ppo", "appo")


def workers_step(settings: Settings, num_parameters: int) -> bool:
    """Whether workers take the optimizer's steps of an update without being asked for each (`steps.py`);
    otherwise the coordinator takes them. The bits are the same.
    """
    training, shape = settings.training, settings.shape
    return (
        training.kernels == "native"
        and training.optimizer == "adam"
        and settings.cluster.nnodes == 1
        and not (shape.lag or shape.num_actors or settings.curiosity.is_curious)
        and num_parameters <= MOST_STEPPED
        and shape.num_epochs * shape.steps_per_iteration <= MOST_ROWS
    )


def computes_whole_lanes(settings: Settings, spec: EnvSpec) -> bool:
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
