"""Chains with values in closed form: a cut episode continues, a finished one does not."""

import numpy as np
import pytest
import torch

import tests.envs.sample_envs  # noqa: F401  (registers them)
from parallel_ppo.algorithms import ppo
from parallel_ppo.envs.families import probe
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import InlinePool
from parallel_ppo.workers.tasks import COLLECT, Task
from parallel_ppo.workers.worker import Worker

GAMMA, LENGTH, STEPS, ENVS = 0.9, 5, 23, 4


def collected(*, is_cut: bool, value: float, gae_lambda: float, scaled: bool = False) -> Memory:
    """One iteration on the chain, with a value function that is `value` everywhere."""
    flags = {
        "env.id": "Chain-v0", "env.num_envs": ENVS, "env.kwargs": {"length": LENGTH, "is_cut": is_cut},
        "training.policy": "mlp", "training.n_steps": STEPS, "training.batch_size": STEPS * ENVS,
        "training.gamma": GAMMA, "training.gae_lambda": gae_lambda, "training.normalize_rewards": scaled,
    }  # fmt: skip
    settings: Settings = load_settings(file=None, flags=flags)
    spec = probe(settings)
    policy = Policy(settings, spec)
    memory = Memory(settings, spec, num_flat(policy))
    memory.poison()
    state = TrainingState(settings, memory)
    bind(policy, state.parameters)
    with torch.no_grad():
        policy.value_head.bias.fill_(value)
    InlinePool(Worker(settings, spec, memory), range(settings.sizes.num_slices), 0).run([Task(COLLECT, 0)])
    ppo.targets(memory, state.rewards.scaled(memory), settings.training)
    return memory


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_the_true_value_of_a_cut_chain_leaves_no_advantage(gae_lambda: float) -> None:
    """Reward 1 for ever is worth 1 / (1 - gamma), and a limit of time changes nothing about it."""
    true = 1 / (1 - GAMMA)
    memory = collected(is_cut=True, value=true, gae_lambda=gae_lambda)
    assert memory.truncated[LENGTH - 1 :: LENGTH].all() and memory.truncated.sum() == STEPS // LENGTH * ENVS
    np.testing.assert_allclose(memory.advantage, 0, atol=1e-5)
    np.testing.assert_allclose(memory.target_return, true, rtol=1e-6)


def test_a_finished_chain_is_worth_what_is_left_of_it() -> None:
    memory = collected(is_cut=False, value=0.0, gae_lambda=1.0)
    assert not memory.truncated.any()
    left = LENGTH - np.arange(STEPS) % LENGTH
    left[STEPS // LENGTH * LENGTH :] = STEPS - np.arange(
        STEPS // LENGTH * LENGTH, STEPS
    )  # cut by the iteration, with value 0
    expected = (1 - GAMMA**left) / (1 - GAMMA)
    np.testing.assert_allclose(memory.target_return, np.tile(expected[:, None], ENVS), rtol=1e-5)


def test_the_value_after_a_finished_episode_does_not_leak() -> None:
    """For any value function, the last step of a finished episode has the value of its reward."""
    memory = collected(is_cut=False, value=1000.0, gae_lambda=1.0)
    np.testing.assert_allclose(memory.target_return[LENGTH - 1 :: LENGTH], 1, rtol=1e-4)


def test_the_bootstrap_is_in_the_units_of_scaled_rewards() -> None:
    """Rewards are scaled before the final value is added, which is learned in scaled units already."""
    memory = collected(is_cut=True, value=3.0, gae_lambda=0.0, scaled=True)
    scale = memory.target_return[0, 0] - GAMMA * 3.0
    assert 0 < scale < 1
    np.testing.assert_allclose(memory.target_return, scale + GAMMA * 3.0, rtol=1e-6)
