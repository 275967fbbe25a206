"""Settings that change during a run, as they are in an iteration: a function of the progress, so nothing is saved."""

from parallel_ppo.algorithms.algorithm import Schedules
from parallel_ppo.settings.schema import Settings


def scheduled(settings: Settings, *, env_steps: int, wall_time: float) -> Schedules:
    training = settings.training
    if training.schedule_by == "time":
        progress = wall_time / (training.schedule_hours * 3600) if training.schedule_hours else 0.0
    else:
        progress = env_steps / training.schedule_steps if training.schedule_steps else 0.0
    left = max(0.0, 1 - progress)
    learning_rate = training.learning_rate * (left if training.learning_rate_schedule == "linear" else 1.0)
    return Schedules(
        learning_rate * warm_up_factor(settings, env_steps),
        training.clip_range * (left if training.clip_range_schedule == "linear" else 1.0),
    )


def warm_up_factor(settings: Settings, env_steps: int) -> float:
    """Grows linearly to 1. The steps of the iteration that begins at `env_steps` count, so the first one learns too."""
    steps = settings.training.learning_rate_warmup
    return 1.0 if steps is None else min(1.0, (env_steps + settings.sizes.steps_per_iteration) / steps)
