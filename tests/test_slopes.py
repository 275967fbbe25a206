"""The written-out loss and backward pass against autograd over the definition."""

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import ppo
from parallel_ppo.algorithms.ppo_gradient import Batch, Weights
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.policies import heads
from parallel_ppo.policies.policy import Policy, bind, initialise, num_flat, views
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.settings.schema import Settings

ACTIONS = {
    "discrete": ActionSpec("categorical", (3,)),
    "multi-discrete": ActionSpec("categorical", (2, 5, 3)),
    "gaussian": ActionSpec("gaussian", (4,)),
    "bernoulli": ActionSpec("bernoulli", (3,)),
}
SAMPLES = 96


def network(spec: ActionSpec, hidden: list[int]) -> tuple[Policy, torch.Tensor]:
    settings = Settings().changed("training", policy="mlp", hidden_sizes=hidden)
    policy = Policy(settings, EnvSpec((5,), "float32", spec, True, 0))
    flat = torch.zeros(num_flat(policy))
    initialise(policy, flat, seed=3)
    bind(policy, flat)
    with torch.no_grad():
        views(policy, flat)["action_head.weight"].mul_(80)  # far from uniform
        if policy.log_std is not None:
            policy.log_std.copy_(torch.linspace(-1, 0.5, spec.sizes[0]))
    return policy, flat


def samples(spec: ActionSpec, policy: Policy, observation: torch.Tensor) -> Batch:
    """Old log-probabilities and values at such distances that every branch of the clipping is taken."""
    draws = np.random.default_rng(5)
    with torch.no_grad():
        output = policy(observation)
    noise = heads.draw_noise(spec, draws, SAMPLES)
    action, log_prob = heads.act(spec, output.action, output.log_std, noise)
    old = log_prob + draws.normal(0, 0.4, SAMPLES)
    value = output.value.numpy() + draws.normal(0, 0.4, SAMPLES)
    rest = draws.normal(0, 1, (2, SAMPLES))
    return Batch(action, *(array.astype(np.float32) for array in (old, value, *rest)))


def by_autograd(
    spec: ActionSpec, policy: Policy, observation: torch.Tensor, batch: Batch, weights: Weights
) -> tuple[torch.Tensor, list[float]]:
    action, log_prob, value, advantage, target = map(torch.from_numpy, batch)
    output = policy(observation)
    evaluated = heads.evaluate(spec, output.action, output.log_std, action)
    sums = ppo.loss_sums(
        log_prob=evaluated.log_prob, entropy=evaluated.entropy, value=output.value, old_log_prob=log_prob,
        old_value=value, advantage=advantage, target_return=target, **weights._asdict(),
    )  # fmt: skip
    gradients = torch.autograd.grad(sums.total, list(policy.parameters()))
    flat = torch.zeros(num_flat(policy))
    for view, gradient in zip(views(policy, flat).values(), gradients, strict=True):
        view.copy_(gradient)
    return flat, [float(value.detach()) for value in sums]


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("hidden", [[16, 12], [8], []], ids=str)
@pytest.mark.parametrize("value_clip", [0.2, None])
def test_gradient_matches_autograd(kind: str, hidden: list[int], value_clip: float | None) -> None:
    spec = ACTIONS[kind]
    policy, flat = network(spec, hidden)
    observation = torch.from_numpy(np.random.default_rng(4).normal(0, 1, (SAMPLES, 5)).astype(np.float32))
    batch = samples(spec, policy, observation)
    weights = Weights(2 * SAMPLES, 0.2, value_clip, 0.03, 0.5)
    expected, expected_sums = by_autograd(spec, policy, observation, batch, weights)
    gradient = torch.zeros_like(flat)
    twin = StackedMlp(policy, flat)
    sums = twin.differentiate(observation, batch, weights, twin.gradient_views(gradient))
    np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_twin_evaluates_as_the_policy_does(kind: str) -> None:
    policy, flat = network(ACTIONS[kind], [16, 16])
    observation = torch.from_numpy(np.random.default_rng(4).normal(0, 1, (8, 5)).astype(np.float32))
    with torch.no_grad():
        expected, found = policy(observation), StackedMlp(policy, flat)(observation)
    np.testing.assert_allclose(found.action, expected.action, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-5, atol=1e-6)
