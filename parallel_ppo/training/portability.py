"""Is a run portable: do all x86-64-v3 machines learn the same bits? Needs no torch."""

from typing import Any

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.choice import unsuitable
from parallel_ppo.settings.kinds import NETWORKS, is_own
from parallel_ppo.settings.named_code import find
from parallel_ppo.settings.schema import Settings

COMPUTED_BY_TORCH = "color_jitter", "grayscale", "random_conv"  # augmentations


def tied_to_machine(settings: Settings, spec: EnvSpec, machine_functions: str) -> tuple[str, ...]:
    """Why other CPUs or library versions may learn other bits; empty for a portable run. `machine_functions` are
    those that the environment calls.
    """
    training, reasons = settings.training, list[str]()
    if training.kernels != "native":
        reasons.append("training.kernels: torch's kernels round by CPU")
    elif settings.curiosity.is_curious and _torch_reads_images(spec):
        reasons.append("curiosity.kind: torch reads images of this size for it, which rounds by CPU")
    if training.augmentation in COMPUTED_BY_TORCH:
        reasons.append(f"training.augmentation: torch computes {training.augmentation}, which rounds by CPU")
    for name in ("learning_rate_schedule", "clip_range_schedule"):
        kind = getattr(training, name)
        if is_own(kind):
            called = _called_by(find(f"training.{name}", kind))
            reasons += [f"training.{name}: {kind} calls {called}, which may round by CPU"] if called else []
    if machine_functions:
        reasons.append(f"env.id: {settings.env.id} calls {machine_functions}, which may round by CPU")
    return tuple(reasons)


def _called_by(function: Any) -> str:
    from parallel_ppo.envs.machine_functions import machine_functions_of  # imports gymnasium

    return machine_functions_of(function)


def _torch_reads_images(spec: EnvSpec) -> bool:
    """As `features/curiosity/encoders.py` chooses."""
    large = [shape for shape in spec.image_shapes if min(shape[:2]) >= NETWORKS["nature"].smallest_image]
    return any(spec.parts or unsuitable("nature", shape) for shape in large)
