"""The MLPs on our kernels against slow twins in float64, and themselves with every instruction set."""

import numpy as np
import pytest
import torch

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.build import VARIANTS
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.policies import heads
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.policies.network import Output
from parallel_ppo.policies.parameters import bind, initialize, num_flat, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
pytestmark = pytest.mark.skipif(not USABLE, reason="our kernels do not run here")

CATEGORICAL, GAUSSIAN = ActionSpec("categorical", (3, 2)), ActionSpec("gaussian", (6,))
CASES = [
    (CATEGORICAL, 4, [64, 64], "tanh"),
    (GAUSSIAN, 17, [64, 64], "relu"),
    (ActionSpec("bernoulli", (3,)), 1, [32], "tanh"),
    (CATEGORICAL, 5, [16, 80, 48], "tanh"),
    (CATEGORICAL, 5, [16, 80, 48], "relu"),
]


def network(
    spec: ActionSpec,
    num_inputs: int,
    hidden_sizes: list[int],
    activation: str = "tanh",
    curiosity: str = "none",
) -> tuple[Policy, torch.Tensor]:
    settings = Settings().changed("training", policy="mlp", hidden_sizes=hidden_sizes, activation=activation)
    settings = settings.changed("curiosity", kind=curiosity)
    policy = Policy(settings, EnvSpec((num_inputs,), "float32", spec, 0))
    flat = torch.zeros(num_flat(policy))
    initialize(policy, flat, 3)
    flat += torch.from_numpy(np.random.default_rng(1).normal(0, 0.05, len(flat)).astype(np.float32))
    bind(policy, flat)
    return policy, flat


def samples(num: int, num_inputs: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).normal(0, 2, (num, num_inputs)).astype(np.float32))


def slow_outputs(
    policy: Policy, flat: torch.Tensor, observation: torch.Tensor, activation: str = "tanh"
) -> dict[str, np.ndarray]:
    """Sample by sample, in NumPy and float64."""
    function = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}[activation]
    named = {name: view.numpy().astype(np.float64) for name, view in views(policy, flat).items()}
    found: dict[str, list[np.ndarray]] = {"action": [], "value": []}
    for row in observation.numpy().astype(np.float64):
        for trunk, head in (("trunk", "action"), ("value_trunk", "value")):
            units = row
            for name in named:
                if name.startswith(f"{trunk}.") and name.endswith("weight"):
                    units = function(named[name] @ units + named[name.replace("weight", "bias")])
            found[head].append(named[f"{head}_head.weight"] @ units + named[f"{head}_head.bias"])
    return {head: np.stack(rows) for head, rows in found.items()}


@pytest.mark.parametrize(("spec", "num_inputs", "hidden", "activation"), CASES)
@pytest.mark.parametrize("num", [1, 7, 64])
def test_outputs_are_those_of_the_slow_twin(spec, num_inputs, hidden, activation, num: int) -> None:
    policy, flat = network(spec, num_inputs, hidden, activation)
    native, observation = NativeMlp(policy, flat), samples(num, num_inputs)
    native.begin_inference()
    found, expected = native.infer(observation), slow_outputs(policy, flat, observation, activation)
    np.testing.assert_allclose(found.action, expected["action"], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(found.value, expected["value"][:, 0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("curiosity", ["none", "rnd"])
@pytest.mark.parametrize(("spec", "num_inputs", "hidden", "activation"), CASES)
def test_gradients_are_those_of_autograd(spec, num_inputs, hidden, activation, curiosity: str) -> None:
    policy, flat = network(spec, num_inputs, hidden, activation, curiosity)
    native, observation = NativeMlp(policy, flat), samples(50, num_inputs)
    draws = torch.Generator().manual_seed(3)
    by_action = torch.randn(50, heads.num_outputs(spec), generator=draws)
    by_values = torch.randn(50, policy.value_head.out_features, generator=draws)
    by_log_std = torch.randn(6, generator=draws)
    gradient = torch.full_like(flat, torch.nan)
    native.begin_step((0,))
    native.forward(observation)
    is_gaussian = spec.kind == "gaussian"
    native.backward(
        Output(by_action, by_log_std if is_gaussian else None, by_values), native.gradient_views(gradient)
    )
    exact = policy.double()
    output = exact(observation.double())
    names, parameters = zip(*exact.named_parameters(), strict=True)
    expected = torch.autograd.grad(
        (output.action, output.values),
        parameters,
        (by_action.double(), by_values.double()),
        allow_unused=True,
    )
    found = views(policy, gradient)
    for name, values in zip(names, expected, strict=True):
        wanted = by_log_std if values is None else values
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("spec", "num_inputs", "hidden", "activation"), CASES)
def test_actions_are_those_of_the_plain_heads(spec, num_inputs, hidden, activation) -> None:
    policy, flat = network(spec, num_inputs, hidden, activation)
    native, observation = NativeMlp(policy, flat), samples(300, num_inputs)
    native.begin_inference()
    noise = heads.draw_noise(spec, np.random.default_rng(5), 300)
    output, acted = native.infer(observation), native.act(observation, noise)
    action, log_prob = heads.act(spec, output.action, output.log_std, noise)
    same = np.isclose(acted.action, action, rtol=1e-5, atol=1e-6).all(1)
    assert same.mean() > 0.99, "rounding may move a draw over an edge, rarely"
    np.testing.assert_allclose(acted.log_prob[same], log_prob[same], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(acted.values, output.values)


def results() -> list[np.ndarray]:
    found = []
    for spec, num_inputs, hidden, activation in CASES:
        policy, flat = network(spec, num_inputs, hidden, activation)
        native, observation = NativeMlp(policy, flat), samples(37, num_inputs)
        native.begin_inference()
        found += list(native.act(observation, heads.draw_noise(spec, np.random.default_rng(5), 37)))
        output, gradient = native.forward(observation), torch.zeros_like(flat)
        native.backward(output, native.gradient_views(gradient))
        found += [output.action.numpy(), output.value.numpy(), gradient.numpy()]
    return found


@pytest.mark.skipif(len(USABLE) < 2, reason="one instruction set only")
def test_every_instruction_set_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    of_each = []
    for variant in USABLE:
        monkeypatch.setenv("PARALLEL_PPO_KERNEL", variant)
        of_each.append(results())
    for first, second in zip(*of_each, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    policy, flat = network(CATEGORICAL, 5, [16, 80, 48])
    native, observation = NativeMlp(policy, flat), samples(11, 5)
    native.begin_inference()
    whole, alone = native.infer(observation), native.infer(observation[9:10])
    assert torch.equal(whole.action[9:10], alone.action) and torch.equal(whole.value[9:10], alone.value)


def test_extreme_inputs_saturate() -> None:
    policy, flat = network(CATEGORICAL, 4, [16])
    native = NativeMlp(policy, flat)
    native.begin_inference()
    large = native.infer(torch.tensor([[1e30, -1e30, 1e30, 3.0], [torch.inf, 0.0, 0.0, 0.0]]))
    assert torch.isfinite(large.action).all() and torch.isfinite(large.value).all()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_nan_stays(activation: str) -> None:
    policy, flat = network(CATEGORICAL, 4, [16], activation)
    native = NativeMlp(policy, flat)
    native.begin_inference()
    assert native.infer(torch.tensor([[torch.nan, 0.0, 0.0, 0.0]])).value.isnan().all()
    acted = native.act(torch.full((1, 4), torch.nan), np.full((1, 2), 0.5, np.float32))
    assert np.isnan(acted.log_prob).all()


def test_which_networks_fit() -> None:
    assert unusable("mlp", (4,), [64, 64]) is None
    assert "multiples of 16" in str(unusable("mlp", (4,), [64, 30]))
    assert "hidden" in str(unusable("mlp", (4,), []))


def test_room_for_a_wide_observation_grows_with_its_weights() -> None:
    """It grew with the square of the inputs: a million of them could not be had."""
    num_inputs, units = 100_000, 16
    policy, flat = network(CATEGORICAL, num_inputs, [units, units])
    native, observation = NativeMlp(policy, flat), samples(2, num_inputs)
    native.begin_inference()
    found, expected = native.forward(observation), slow_outputs(policy, flat, observation)
    np.testing.assert_allclose(found.action, expected["action"], rtol=1e-4, atol=2e-4)
    assert native.space(observation).kept.numel() < 2 * num_inputs * units
