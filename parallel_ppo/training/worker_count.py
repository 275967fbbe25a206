"""How many workers a small network is worth. Changes nothing of what is learned, only who does it.

A task given to another process costs a message and a wake-up. For convolutions that is nothing; for two small MLPs it can be as
much as the task. The estimate only has to tell which of the two it is, so round figures do.
"""

from collections.abc import Callable
from itertools import pairwise

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.settings.schema import Settings

MESSAGE = 1e-4  # seconds for a task and its answer: 36 us for the bare pipe (median of 4,000), the rest in pool and worker
FORWARD = 8e-5  # seconds for the calls of one batched forward pass, an action and its bookkeeping
LANE = 3e-4  # seconds for the calls of one lane's gradient
OPERATIONS = 2e10  # a second, in small matrix products on one core
LEAST_GAIN = 1.15  # what processes must bring before they are started


def useful_workers(
    settings: Settings, spec: EnvSpec, most: int, step_seconds: Callable[[], float]
) -> tuple[int, str] | None:
    """The number of workers (0: none, everything in the coordinator) and why; None where the estimate does not apply."""
    if settings.training.policy != "mlp":
        return None
    duration = step_seconds()
    estimates = [_iteration(settings, spec, duration, workers) for workers in range(most + 1)]
    best = min(range(1, most + 1), key=lambda workers: estimates[workers])
    step = f"a step of {settings.env.id} takes {1e6 * duration:.0f} us"
    if estimates[0] <= estimates[best] * LEAST_GAIN:
        return (
            0,
            f"no worker processes: {step} and the network is small, so messages would cost more than they bring",
        )
    return best, f"at most {best} of {most}: {step}, and more would mostly wait for messages"


def _iteration(settings: Settings, spec: EnvSpec, step: float, workers: int) -> float:
    """Seconds of one iteration, roughly; `workers` 0 is the inline pool."""
    shape, hands = settings.shape, max(1, workers)
    message = MESSAGE if workers else 0.0
    sizes = [*spec.observation_shape, *settings.training.hidden_sizes]
    products = 4 * sum(before * after for before, after in pairwise(sizes))
    forward = FORWARD + shape.slice_envs * products / OPERATIONS
    collect = shape.num_steps * (shape.slice_envs * step + forward) + message
    lane = LANE + 3 * max(shape.lane_sizes) * products / OPERATIONS
    learn = -(-shape.num_lanes // hands) * lane + (shape.num_lanes + 1) * message
    return -(-shape.num_slices // hands) * collect + shape.num_epochs * shape.num_minibatches * learn
