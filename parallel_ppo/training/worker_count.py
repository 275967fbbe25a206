"""The number of workers that a small network is worth. It does not change what is learned.

A task for another process costs a message and a wake-up. For convolutions that is nothing; for two small MLPs it
can be as much as the task. The estimate only has to separate these cases, so round figures suffice.
"""

from collections.abc import Callable
from itertools import pairwise

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.choice import computes_whole_microbatches
from parallel_ppo.machine.iteration_model import WORTH_PROCESSES, Iteration, Pieces
from parallel_ppo.settings.schema import Settings

# Seconds for the calls of one batched forward pass, an action and its bookkeeping; of one microbatch's gradient.
FORWARD = {"torch": 8e-5, "native": 3e-5}
MICROBATCH = {"torch": 3e-4, "native": 8e-5}
MICROBATCH_IN_ONE_CALL = 3e-6
OPERATIONS = {"torch": 2e10, "native": 1.5e11}  # a second, in small matrix products on one core


def useful_workers(
    settings: Settings, spec: EnvSpec, most: int, step_seconds: Callable[[], float]
) -> tuple[int, str] | None:
    """The number of workers (0: none) and why; None where the estimate does not apply."""
    if settings.training.policy != "mlp":
        return None
    duration = step_seconds()
    iteration = _estimate(settings, spec, duration, most)
    best = iteration.best()
    step = f"a step of {settings.env.id} takes {1e6 * duration:.0f} us"
    if iteration.gain(best) <= WORTH_PROCESSES:
        return (
            0,
            f"no worker processes: {step} and the network is small, so messages would cost more than they "
            "bring",
        )
    return best, f"{best} of {most} workers: {step}, and more would mostly wait for messages"


def pieces_of(settings: Settings, num_slices: int | None = None) -> Pieces:
    """All nodes' pieces, or those of the node that has `num_slices`."""
    sizes = settings.sizes
    slices, updates = num_slices or sizes.num_slices, sizes.num_epochs * sizes.num_minibatches
    return Pieces(slices, slices * len(sizes.microbatch_sizes), updates, is_asked=bool(sizes.num_actors))


def _estimate(settings: Settings, spec: EnvSpec, step: float, cores: int) -> Iteration:
    """An iteration without worker processes."""
    sizes = settings.sizes
    widths = [*spec.observation_shape, *settings.training.hidden_sizes]
    products = 4 * sum(before * after for before, after in pairwise(widths))
    kernels = settings.training.kernels
    forward = FORWARD[kernels] + sizes.slice_envs * products / OPERATIONS[kernels]
    calls = MICROBATCH_IN_ONE_CALL if computes_whole_microbatches(settings, spec) else MICROBATCH[kernels]
    microbatch = calls + 3 * max(sizes.microbatch_sizes) * products / OPERATIONS[kernels]
    pieces = pieces_of(settings)
    collect = sizes.num_slices * sizes.num_steps * (sizes.slice_envs * step + forward)
    return Iteration(
        collect, pieces.updates * pieces.microbatches * microbatch, 0.0, pieces, workers=0, cores=cores
    )
