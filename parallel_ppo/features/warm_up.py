"""The learning rate's warm-up: it grows linearly with the environment steps of a run until it is whole."""

from parallel_ppo.settings.schema import Settings


def warm_up_factor(settings: Settings, env_steps: int) -> float:
    """Of the iteration that begins at `env_steps`; its own steps count, so that the first one learns too."""
    steps = settings.training.learning_rate_warmup
    return 1.0 if steps is None else min(1.0, (env_steps + settings.sizes.steps_per_iteration) / steps)
