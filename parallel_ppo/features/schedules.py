"""Settings that change during a run, as they are in an iteration: a function of the progress, so nothing is saved."""

import math

from parallel_ppo.algorithms.algorithm import Schedules
from parallel_ppo.exits import InputError
from parallel_ppo.settings.kinds import is_own
from parallel_ppo.settings.named_code import find
from parallel_ppo.settings.schema import Settings


def scheduled(settings: Settings, *, env_steps: int, wall_time: float) -> Schedules:
    training = settings.training
    if training.schedule_by == "time":
        progress = wall_time / (training.schedule_hours * 3600) if training.schedule_hours else 0.0
    else:
        progress = env_steps / training.schedule_steps if training.schedule_steps else 0.0
    left = max(0.0, 1 - progress)
    return Schedules(
        value_of(settings, "learning_rate", left) * warm_up_factor(settings, env_steps),
        value_of(settings, "clip_range", left),
    )


def warm_up_factor(settings: Settings, env_steps: int) -> float:
    """Grows linearly to 1. The steps of the iteration that begins at `env_steps` count, so the first one learns too."""
    steps = settings.training.learning_rate_warmup
    return 1.0 if steps is None else min(1.0, (env_steps + settings.sizes.steps_per_iteration) / steps)


def value_of(settings: Settings, name: str, left: float) -> float:
    """`left` is the share of the schedule that is left."""
    value, kind = (getattr(settings.training, key) for key in (name, f"{name}_schedule"))
    if not is_own(kind):
        return value * (left if kind == "linear" else 1.0)
    key = f"training.{name}_schedule"
    try:
        found = float(find(key, kind)(left))
    except Exception as error:
        raise InputError(f"{key}: {kind} failed at {left:g} ({type(error).__name__}: {error})") from error
    if not 0 <= found < math.inf:
        raise InputError(f"{key}: {kind} returned {found} at {left:g}; expected a number from 0 on")
    return found
