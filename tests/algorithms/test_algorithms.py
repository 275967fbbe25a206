"""A2C against PPO, V-trace against a slow twin, RMSprop against torch, and the settings of each algorithm."""

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import ALGORITHMS, optimizers, ppo
from parallel_ppo.algorithms.algorithm import Sampled, differentiate
from parallel_ppo.algorithms.vtrace import vtrace
from parallel_ppo.exits import InputError
from parallel_ppo.policies import heads
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from tests.algorithms.test_differentiation import ACTIONS, SAMPLES, network, observations
from tests.kernels.networks import needs_kernels

# --- A2C ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("stacked", [True, False])
def test_a2c_has_ppos_gradient_where_the_ratio_is_one(kind: str, stacked: bool) -> None:
    """Bit for bit: the old log-probability comes from the same forward pass."""
    policy, flat = network(ACTIONS[kind], [16])
    chosen = StackedMlp(policy, flat) if stacked else AutogradNetwork(policy)
    output, draws, spec = chosen.forward(observations()), np.random.default_rng(2), ACTIONS[kind]
    detached = output._replace(action=output.action.detach(), values=output.values.detach())
    with torch.no_grad():
        noise = heads.draw_noise(spec, draws, SAMPLES)
        action, _ = heads.act(spec, detached.action, detached.log_std, noise)
    training = Settings().changed("training", clip_value_loss=False, entropy_coef=0.02).training
    batch = {name: torch.from_numpy(draws.normal(0, 1, SAMPLES).astype(np.float32))
             for name in ("value", "advantage", "target_return")}  # fmt: skip
    batch |= {"action": torch.from_numpy(action), "log_prob": torch.zeros(SAMPLES)}
    batch["log_prob"] = _log_prob_as_computed(chosen.takes_loss_gradient, spec, detached, batch["action"])
    sampled = Sampled(batch, (0.0, 1.0, 0.2), spec, training, SAMPLES)
    first, _ = differentiate(ALGORITHMS["ppo"], chosen, detached, sampled)
    second, _ = differentiate(ALGORITHMS["a2c"], chosen, detached, sampled)
    assert torch.equal(first.action, second.action) and torch.equal(first.value, second.value)
    assert first.log_std is None or torch.equal(first.log_std, second.log_std)


def _log_prob_as_computed(written_out, spec, output, action) -> torch.Tensor:
    if not written_out:
        with torch.no_grad():
            return heads.evaluate(spec, output.action, output.log_std, action).log_prob
    from parallel_ppo.policies.head_derivatives import differentiate as derive

    log_std = None if output.log_std is None else output.log_std.detach().numpy()
    return torch.from_numpy(derive(spec, output.action.numpy(), log_std, action.numpy()).log_prob)


# --- V-trace ------------------------------------------------------------------------------------------------


def slow_vtrace(reward, value, ratio, start, truncated, final_value, gamma, rho_clip, c_clip):
    """The sum of the paper, term by term: O(T^2), in float64."""
    num_steps, num_envs = reward.shape
    target = value[:-1].astype(np.float64)
    for env in range(num_envs):
        for s in range(num_steps):
            weight = 1.0
            for t in range(s, num_steps):
                ended = bool(start[t + 1, env])
                following = (
                    final_value[t, env] if truncated[t, env] else (0.0 if ended else value[t + 1, env])
                )
                rho = min(rho_clip, ratio[t, env])
                target[s, env] += weight * rho * (reward[t, env] + gamma * following - value[t, env])
                if ended:
                    break
                weight *= gamma * min(c_clip, ratio[t, env])
    return target


def made_up_rollout(seed: int, num_steps: int = 15, num_envs: int = 5) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    start = draws.random((num_steps + 1, num_envs)) < 0.2
    return {
        "reward": draws.normal(size=(num_steps, num_envs)).astype(np.float32),
        "value": draws.normal(size=(num_steps + 1, num_envs)).astype(np.float32),
        "episode_start": start,
        "truncated": start[1:] & (draws.random((num_steps, num_envs)) < 0.5),
        "final_value": draws.normal(size=(num_steps, num_envs)).astype(np.float32),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clips", [(1.0, 1.0), (0.8, 1.3)])
def test_vtrace_equals_its_definition(seed: int, clips: tuple[float, float]) -> None:
    rollout, (rho_clip, c_clip) = made_up_rollout(seed), clips
    log_ratio = np.random.default_rng(seed + 9).normal(0, 0.5, rollout["reward"].shape).astype(np.float32)
    found = vtrace(**rollout, log_ratio=log_ratio, gamma=0.95, rho_clip=rho_clip, c_clip=c_clip)
    arrays = [rollout[name] for name in ("episode_start", "truncated", "final_value")]
    expected = slow_vtrace(rollout["reward"], rollout["value"], np.exp(log_ratio), *arrays, 0.95, *clips)
    np.testing.assert_allclose(found.target_return, expected, rtol=1e-4, atol=1e-5)
    start, truncated, final_value = arrays
    for env in range(rollout["reward"].shape[1]):
        for t in range(len(rollout["reward"]) - 1):
            ended = bool(start[t + 1, env])
            cut = final_value[t, env] if truncated[t, env] else 0.0
            following = cut if ended else expected[t + 1, env]
            advantage = rollout["reward"][t, env] + 0.95 * following - rollout["value"][t, env]
            assert found.advantage[t, env] == pytest.approx(advantage, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_vtrace_of_the_acting_policy_is_the_lambda_one_return(seed: int) -> None:
    rollout = made_up_rollout(seed)
    zeros = np.zeros_like(rollout["reward"])
    found = vtrace(**rollout, log_ratio=zeros, gamma=0.95, rho_clip=1.0, c_clip=1.0)
    advantage = ppo.generalized_advantages(**rollout, gamma=0.95, gae_lambda=1.0)
    np.testing.assert_allclose(found.target_return, advantage + rollout["value"][:-1], rtol=1e-4, atol=1e-5)


# --- optimizers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["torch", pytest.param("native", marks=needs_kernels)])
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_an_optimizer_equals_its_definition(name: str, kernels: str) -> None:
    draws = torch.Generator().manual_seed(0)
    parameters = torch.randn(100_000, generator=draws)
    expected = torch.nn.Parameter(parameters.clone())
    training = Settings().changed("training", optimizer=name, kernels=kernels, weight_decay=0.3).training
    theirs: torch.optim.Optimizer = torch.optim.RMSprop([expected], 1e-3, alpha=0.99, eps=1e-5)
    if name == "adam":
        theirs = torch.optim.Adam([expected], 1e-3, eps=1e-5)
    elif name == "adamw":
        theirs = torch.optim.AdamW([expected], 1e-3, eps=1e-5, weight_decay=0.3)
    first = torch.zeros_like(parameters)
    second = torch.full_like(parameters, optimizers.initial_second_moment(name))
    square = torch.ones_like(parameters)
    for number in range(1, 6):
        gradient = torch.randn(100_000, generator=draws)
        if name == "rmsprop_tf":
            square = 0.99 * square + 0.01 * (gradient * 0.5) ** 2
            expected.data -= 1e-3 * gradient * 0.5 / (square + 1e-5).sqrt()
        else:
            expected.grad = gradient * 0.5
            theirs.step()
        optimizers.step(
            training, parameters=parameters, gradient=gradient, first_moment=first, second_moment=second,
            number=number, learning_rate=1e-3, gradient_scale=0.5,
        )  # fmt: skip
    torch.testing.assert_close(parameters, expected.detach(), rtol=1e-5, atol=1e-6)


# --- settings -----------------------------------------------------------------------------------------------


def test_an_algorithm_brings_its_defaults_and_its_whole_batch() -> None:
    settings = load_settings(file=None, flags={"training.algorithm": "a2c", "env.num_envs": 16})
    assert (settings.training.n_steps, settings.training.batch_size) == (5, 80)
    assert settings.training.optimizer == "rmsprop" and settings.training.gae_lambda == 1.0
    chosen = load_settings(file=None, flags={"training.algorithm": "a2c", "training.gae_lambda": 0.9})
    assert chosen.training.gae_lambda == 0.9
    assert load_settings(file=None, flags={"training.algorithm": "impala"}).training.lag == 1
    assert load_settings(file=None, flags={}).training.batch_size == 1024


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"training.lag": -1}, r"training\.lag: got -1"),
        ({"training.algorithm": "a2c", "training.lag": 1},
        r"training\.lag: a2c has none; .* ppo, impala, appo"),
        ({"training.algorithm": "a3c", "training.num_actors": 64},
        r"training\.num_actors: 64 does not divide .* nearest: 32"),
        ({"training.num_actors": 4}, r"training\.num_actors: is for a3c"),
        ({"training.optimizer": "sgd"}, r"training\.optimizer: got 'sgd'"),
        ({"training.algorithm": "dqn"}, r"training\.algorithm: got 'dqn'"),
        ({"training.algorithm": "impala", "training.n_epochs": 3},
        r"training\.n_epochs: impala learns from each"),
        ({"training.algorithm": "a2c", "training.batch_size": 32},
        r"training\.batch_size: a2c takes one step"),
        ({"training.clip_rewards": 1.0}, r"training\.clip_rewards: limits raw rewards"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(flags: dict, line: str) -> None:
    with pytest.raises(InputError, match=line):
        load_settings(file=None, flags=flags)
