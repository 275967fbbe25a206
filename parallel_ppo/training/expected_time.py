"""A warning before a first iteration that takes long, from the times of a few steps and of a forward pass."""

import time

import torch

from parallel_ppo.policies.actor import TRIAL_ROWS, trial_observation
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.training.planning import Plan

SLOW_ITERATION = 60.0  # seconds
LARGE_IMAGE = 100 * 100  # pixels; with smaller ones, no network takes long
COMFORTABLE_SIDE = 84  # pixels
GRADIENT_PASSES = 3  # the time of a gradient: forward and backward, as forward passes


def slow_iteration(plan: Plan, policy: Policy) -> str | None:
    """The line to show, if there is one."""
    sizes, env_id = plan.settings.sizes, plan.settings.env.id
    workers = 1 if plan.inline else plan.placement.num_workers
    step = plan.replay_check.step_seconds
    sample = _seconds_of_sample(plan, policy) * (1 + GRADIENT_PASSES * sizes.num_epochs)
    seconds = (step + sample) * sizes.steps_per_iteration / workers / plan.node.size
    if seconds < SLOW_ITERATION or family_of(env_id).HAS_LEVELS:
        return None
    num_steps = max(1, int(sizes.num_steps * SLOW_ITERATION / seconds))
    advice = [f"training.n_steps={1 << (num_steps.bit_length() - 1)} for earlier results"]
    if sample > step and len(plan.spec.image_shapes) == 1:
        height, width, _ = plan.spec.image_shapes[0]
        factor = -(-min(height, width) // COMFORTABLE_SIDE)
        wrapper = f"gymnasium.wrappers:ResizeObservation: {{shape: [{height // factor}, {width // factor}]}}"
        advice.insert(0, f"images of {height} x {width} take most of it, use the wrapper {{{wrapper}}}")
    return (
        f"an iteration of {sizes.num_envs} environments x {sizes.num_steps} steps takes about {seconds:.0f} s"
        f" ({step * 1000:.1f} ms a step of {env_id}, {sample * 1000:.1f} ms of the network): {'; '.join(advice)}"
    )


def _seconds_of_sample(plan: Plan, policy: Policy) -> float:
    """Seconds of a forward pass; 0 without large images."""
    if max((height * width for height, width, _ in plan.spec.image_shapes), default=0) < LARGE_IMAGE:
        return 0.0
    observation, durations = trial_observation(plan.settings, plan.spec), list[float]()
    with torch.no_grad():
        for _ in range(3):
            began = time.perf_counter()
            policy.trunk(observation)
            durations.append(time.perf_counter() - began)
    return min(durations) / TRIAL_ROWS
