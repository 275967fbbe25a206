"""Written-out derivatives and backward passes against autograd over the definitions, through the one seam
of the worker.
"""

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.algorithm import Algorithm, Sampled, Statistics, differentiate
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.policies import heads
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.network import Network, Output
from parallel_ppo.policies.parameters import bind, initialize, num_flat, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.settings.schema import Settings

ACTIONS = {
    "discrete": ActionSpec("categorical", (3,)),
    "multi-discrete": ActionSpec("categorical", (2, 5, 3)),
    "gaussian": ActionSpec("gaussian", (4,)),
    "bernoulli": ActionSpec("bernoulli", (3,)),
}
SAMPLES = 96
SCALARS = (0.1, 0.9, 0.2)


def network(
    spec: ActionSpec, hidden: list[int], curiosity: str = "none", activation: str = "tanh"
) -> tuple[Policy, torch.Tensor]:
    settings = Settings().changed("training", policy="mlp", hidden_sizes=hidden, activation=activation)
    settings = settings.changed("curiosity", kind=curiosity)
    policy = Policy(settings, EnvSpec((5,), "float32", spec, 0))
    flat = torch.zeros(num_flat(policy))
    initialize(policy, flat, seed=3)
    bind(policy, flat)
    with torch.no_grad():
        views(policy, flat)["action_head.weight"].mul_(80)  # far from uniform
        if policy.log_std is not None:
            policy.log_std.copy_(torch.linspace(-1, 0.5, spec.sizes[0]))
    return policy, flat


def samples(
    policy: Policy,
    observation: torch.Tensor,
    *,
    clip_value_loss: bool = True,
    mask: torch.Tensor | None = None,
) -> Sampled:
    """Old log-probabilities and values at such distances that every branch of the clipping is taken."""
    draws, spec = np.random.default_rng(5), policy.spec.action
    with torch.no_grad():
        output = heads.masked(policy(observation), mask)
    noise = heads.draw_noise(spec, draws, SAMPLES)
    action, log_prob = heads.act(spec, output.action, output.log_std, noise)
    batch = {
        "action": action,
        "log_prob": log_prob + draws.normal(0, 0.4, SAMPLES),
        "value": output.value.numpy() + draws.normal(0, 0.4, SAMPLES),
        "advantage": draws.normal(0, 1, SAMPLES),
        "target_return": draws.normal(0, 1, SAMPLES),
    }
    settings = Settings().changed("training", clip_value_loss=clip_value_loss, entropy_coef=0.03)
    tensors = {name: torch.from_numpy(np.asarray(array, np.float32)) for name, array in batch.items()}
    return Sampled(tensors, SCALARS, spec, settings.training, 2 * SAMPLES)


def microbatch_gradient(
    algorithm: Algorithm,
    chosen: Network,
    observation: torch.Tensor,
    sampled: Sampled,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Statistics]:
    """As a worker computes it."""
    flat = torch.zeros(num_flat(chosen.policy))  # type: ignore[attr-defined]
    output = heads.masked(chosen.forward(observation), mask)
    gradient, statistics = differentiate(algorithm, chosen, output, sampled)
    chosen.backward(gradient, chosen.gradient_views(flat))
    return flat, statistics


def end_to_end(policy: Policy, observation: torch.Tensor, sampled: Sampled) -> tuple[torch.Tensor, list]:
    """One graph from the parameters to the loss."""
    statistics = ALGORITHMS["ppo"].loss(policy(observation), sampled)
    gradients = torch.autograd.grad(statistics.loss, list(policy.parameters()))
    flat = torch.zeros(num_flat(policy))
    for view, gradient in zip(views(policy, flat).values(), gradients, strict=True):
        view.copy_(gradient)
    return flat, [float(torch.as_tensor(number).detach()) for number in statistics]


def observations(num_samples: int = SAMPLES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).normal(0, 1, (num_samples, 5)).astype(np.float32))


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("hidden", [[16, 12], [8], []], ids=str)
@pytest.mark.parametrize(("clip_value_loss", "activation"), [(True, "tanh"), (False, "relu")])
def test_every_way_to_differentiate_agrees(
    kind: str, hidden: list[int], clip_value_loss: bool, activation: str
) -> None:
    """Written out by hand, and by autograd in the outputs only; on a network without autograd and on one
    with it.
    """
    policy, flat = network(ACTIONS[kind], hidden, activation=activation)
    observation = observations()
    sampled = samples(policy, observation, clip_value_loss=clip_value_loss)
    expected, expected_sums = end_to_end(policy, observation, sampled)
    plain = ALGORITHMS["ppo"]._replace(loss_gradient=None)
    found = {
        "written out": microbatch_gradient(ALGORITHMS["ppo"], StackedMlp(policy, flat), observation, sampled),
        "in the outputs": microbatch_gradient(plain, StackedMlp(policy, flat), observation, sampled),
    }
    for name, (gradient, sums) in found.items():
        np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(sums, expected_sums, rtol=1e-4, atol=1e-5, err_msg=name)
    gradient, sums = microbatch_gradient(plain, AutogradNetwork(policy), observation, sampled)
    assert torch.equal(gradient, expected), "cutting the graph at the outputs changed a bit"
    assert list(sums) == expected_sums


@pytest.mark.parametrize("hidden", [[16, 12], []], ids=str)
def test_a_second_value_is_differentiated_beside_the_first(hidden: list[int]) -> None:
    policy, flat = network(ACTIONS["gaussian"], hidden, curiosity="rnd")
    observation = observations()
    sampled = samples(policy, observation)
    target = torch.linspace(-2, 2, SAMPLES)
    sampled = sampled._replace(batch={**sampled.batch, "intrinsic_return": target})
    output = policy(observation)
    error = 0.5 * (output.values[:, 1] - target).square().sum()
    total = ALGORITHMS["ppo"].loss(output, sampled).loss + sampled.training.value_coef * error / (2 * SAMPLES)
    gradients = torch.autograd.grad(total, list(policy.parameters()))
    for chosen in (StackedMlp(policy, flat), AutogradNetwork(policy)):
        found, sums = microbatch_gradient(ALGORITHMS["ppo"], chosen, observation, sampled)
        for view, gradient in zip(views(policy, found).values(), gradients, strict=True):
            np.testing.assert_allclose(view, gradient, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(
            [sums.loss, sums.intrinsic_value_loss], [total.item(), error.item()], rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete"])
def test_masked_actions_are_differentiated_like_all_others(kind: str) -> None:
    spec, algorithm = ACTIONS[kind], ALGORITHMS["ppo"]
    policy, flat = network(spec, [16, 12])
    mask = torch.from_numpy(
        (np.random.default_rng(6).random((SAMPLES, sum(spec.sizes))) < 0.6).astype(np.uint8)
    )
    mask[:, np.cumsum([0, *spec.sizes[:-1]])] = 1  # something is always allowed
    observation = observations()
    sampled = samples(policy, observation, mask=mask)
    statistics = algorithm.loss(heads.masked(policy(observation), mask), sampled)
    gradients = torch.autograd.grad(statistics.loss, list(policy.parameters()))
    expected = torch.zeros(num_flat(policy))
    for view, gradient in zip(views(policy, expected).values(), gradients, strict=True):
        view.copy_(gradient)
    for chosen in (algorithm, algorithm._replace(loss_gradient=None)):
        found, sums = microbatch_gradient(chosen, StackedMlp(policy, flat), observation, sampled, mask)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(
            sums, [float(torch.as_tensor(number).detach()) for number in statistics], rtol=1e-4, atol=1e-5
        )
    found, _ = microbatch_gradient(algorithm, StackedMlp(policy, flat), observation, sampled)
    assert not np.allclose(found, expected, rtol=2e-2), "the mask did nothing"


@pytest.mark.parametrize("kind", ["discrete", "gaussian"])
def test_a_loss_may_ignore_an_output(kind: str) -> None:
    policy, flat = network(ACTIONS[kind], [8])

    def value_only(output: Output, sampled: Sampled) -> Statistics:
        error = (output.value - sampled.batch["target_return"]).square().sum()
        return Statistics(error / sampled.batch_size, 0.0, error, 0.0)

    algorithm = ALGORITHMS["ppo"]._replace(loss=value_only, loss_gradient=None)
    sampled = samples(policy, observations())
    gradient, _ = microbatch_gradient(algorithm, StackedMlp(policy, flat), observations(), sampled)
    named = views(policy, gradient)
    assert not named["action_head.weight"].any() and named["value_head.weight"].any()


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_stacked_network_computes_what_the_policy_does(kind: str) -> None:
    policy, flat = network(ACTIONS[kind], [16, 16])
    observation = observations(8)
    with torch.no_grad():
        expected, found = policy(observation), StackedMlp(policy, flat).infer(observation)
    np.testing.assert_allclose(found.action, expected.action, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-5, atol=1e-6)
