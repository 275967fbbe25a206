"""The update as a whole against the plain formulation: one batch, torch's own clipping and Adam."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms import minibatches, ppo
from parallel_ppo.algorithms.algorithm import Sampled, Schedules
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.envs.families import probe
from parallel_ppo.exits import NumbersError
from parallel_ppo.features.schedules import scheduled
from parallel_ppo.memory.shared import POISON
from parallel_ppo.policies.parameters import bind, initialize, num_flat, views
from parallel_ppo.policies.policy import Policy, Preparation
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.training.update import learn
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import InlinePool
from parallel_ppo.workers.tasks import COLLECT, Task
from parallel_ppo.workers.worker import Worker
from tests.conftest import small_settings


def collected(settings: Settings) -> tuple[TrainingState, InlinePool, Policy]:
    """A state with one iteration of real samples in poisoned memory."""
    spec = probe(settings)
    policy = Policy(settings, spec)
    memory = Memory(settings, spec, num_flat(policy))
    memory.poison()
    state = TrainingState(settings, memory)
    bind(policy, state.parameters)
    initialize(policy, state.parameters, settings.training.seed)
    pool = InlinePool(Worker(settings, spec, memory), range(settings.sizes.num_slices), 0)
    pool.run(Task(COLLECT, index, 0) for index in range(settings.sizes.num_slices))
    return state, pool, policy


CASES = [("CartPole-v1", "mlp"), pytest.param("coinrun", "nature", marks=pytest.mark.procgen)]


@pytest.mark.parametrize(("env", "kind"), CASES)
def test_no_poison_survives_a_collect(env: str, kind: str) -> None:
    state, _, _ = collected(small_settings(env, kind))
    poison = {
        "float32": np.frombuffer(bytes([POISON] * 4), np.float32)[0],
        "uint8": POISON,
        "int8": np.frombuffer(bytes([POISON]), np.int8)[0],
        "int32": np.frombuffer(bytes([POISON] * 4), np.int32)[0],
    }
    for name, field in state.memory.table.items():
        if field.written == "collect":
            array = getattr(state.memory, name)
            if not array.size:  # masks, where the environment gives none
                continue
            share = np.mean(array == poison[field.dtype])
            assert share < (0.05 if field.dtype == "uint8" and name == "observation" else 1e-9), name


def plain_update(
    state: TrainingState, policy: Policy, settings: Settings, learning_rate: float
) -> dict[str, torch.Tensor]:
    """Whole minibatches through one autograd graph, torch.optim.Adam, torch's clip_grad_norm_."""
    training, sizes, memory = settings.training, settings.sizes, state.memory
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), learning_rate, eps=training.adam_eps)
    prepare = Preparation(settings, policy.spec, torch.zeros(()), torch.ones(()))
    rows_of = memory.sampled_rows()
    for epoch in range(sizes.num_epochs):
        orders = [
            minibatches.rollout_rows(
                minibatches.sample_order(
                    seed=training.seed, slice_index=s, iteration=0, epoch=epoch,
                    num_samples=sizes.num_steps * sizes.slice_envs,
                ),
                slice_index=s, slice_envs=sizes.slice_envs, num_envs=sizes.num_envs,
            )
            for s in range(sizes.num_slices)
        ]  # fmt: skip
        for minibatch in range(sizes.num_minibatches):
            span = slice(minibatch * sizes.slice_samples, (minibatch + 1) * sizes.slice_samples)
            rows = torch.from_numpy(np.concatenate([order[span] for order in orders]))
            batch = {name: values[rows] for name, values in rows_of.items()}
            advantage = batch["advantage"]
            scalars = float(advantage.mean()), float(1 / (advantage.std(unbiased=False) + 1e-8)), 0.2
            sampled = Sampled(batch, scalars, policy.spec.action, training, len(rows))
            statistics = ppo.loss(policy(prepare(batch["observation"])), sampled)
            optimizer.zero_grad()
            statistics.loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), training.max_grad_norm)
            optimizer.step()
    return dict(policy.named_parameters())


@pytest.mark.parametrize(("env", "kind"), CASES)
def test_update_equals_the_plain_formulation(env: str, kind: str) -> None:
    settings = small_settings(
        env, kind, training__n_epochs=2, training__lane_samples=16, training__learning_rate=1e-4
    )
    state, pool, policy = collected(settings)
    before = state.snapshot()
    ppo.targets(state.memory, state.rewards.scaled(state.memory), settings.training)
    expected = plain_update(state, policy, settings, 1e-4)
    state.rewind(before)
    start = {name: view.clone() for name, view in views(policy, state.parameters).items()}
    statistics = learn(state, pool, Cluster(settings.sizes), Schedules(1e-4, 0.2), Timeline())
    assert statistics.columns["minibatches"] == 8
    for name, view in views(policy, state.parameters).items():
        moved = float((view - start[name]).abs().max())
        assert moved > 0
        assert float((view - expected[name].detach()).abs().max()) < 0.05 * moved + 1e-7, name


def test_target_kl_stops_before_the_step() -> None:
    settings = small_settings(training__target_kl=1e-9, training__learning_rate=1e-2)
    state, pool, _ = collected(settings)
    columns = learn(state, pool, Cluster(settings.sizes), Schedules(1e-2, 0.2), Timeline()).columns
    assert columns["kl_stopped"] == 1
    assert columns["minibatches"] < settings.sizes.num_epochs * settings.sizes.num_minibatches
    assert state.counters.optimizer_steps == columns["minibatches"]


def test_a_gradient_that_is_not_finite_is_never_applied() -> None:
    settings = small_settings(env__slice_envs=8)
    state, pool, _ = collected(settings)
    state.memory.log_prob[3, 9] = np.nan
    before = state.parameters.clone()
    with pytest.raises(NumbersError, match="environments 8 to 15"):
        for _ in range(settings.sizes.num_minibatches):
            learn(state, pool, Cluster(settings.sizes), Schedules(1e-3, 0.2), Timeline())
    moved = int((state.parameters != before).sum())
    assert state.counters.optimizer_steps < settings.sizes.num_minibatches
    assert torch.isfinite(state.parameters).all() and moved >= 0


def test_schedules() -> None:
    settings = small_settings(
        training__learning_rate_schedule="linear", training__schedule_steps=1000, training__learning_rate=0.1
    )
    assert scheduled(settings, env_steps=250, wall_time=0).learning_rate == pytest.approx(0.075)
    assert scheduled(settings, env_steps=2000, wall_time=0).learning_rate == 0
    assert scheduled(settings, env_steps=250, wall_time=0).clip_range == 0.2
    timed = small_settings(
        training__clip_range_schedule="linear", training__schedule_by="time", training__schedule_hours=1.0
    )
    assert scheduled(timed, env_steps=0, wall_time=1800).clip_range == pytest.approx(0.1)


def test_a_warm_up_grows_to_the_whole_rate_before_any_schedule() -> None:
    settings = small_settings(training__learning_rate_warmup=1024, training__learning_rate=0.1)
    rates = [scheduled(settings, env_steps=256 * i, wall_time=0).learning_rate for i in range(6)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
    both = small_settings(
        training__learning_rate_warmup=1024, training__learning_rate_schedule="linear",
        training__schedule_steps=2048, training__learning_rate=0.1,
    )  # fmt: skip
    assert scheduled(both, env_steps=512, wall_time=0).learning_rate == pytest.approx(0.1 * 0.75 * 0.75)


def test_an_infinite_divergence_is_no_reason_to_stop_in_silence() -> None:
    settings = small_settings(training__target_kl=0.1)
    state, pool, _ = collected(settings)
    state.memory.log_prob[:] = -200  # the ratio overflows
    before = state.parameters.clone()
    with pytest.raises(NumbersError, match="not finite"):
        learn(state, pool, Cluster(settings.sizes), Schedules(1e-3, 0.2), Timeline())
    assert torch.equal(state.parameters, before)


# --- whole updates ------------------------------------------------------------------------------------------

MATCHING = {
    "training__n_epochs": 1, "training__batch_size": 256, "training__gae_lambda": 1.0,
    "training__clip_value_loss": False, "training__normalize_advantages": False,
    "training__optimizer": "rmsprop", "training__learning_rate": 7e-4,
}  # fmt: skip


def learned(settings: Settings, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameters after some iterations of real samples, and how far they moved."""
    state, pool, _ = collected(settings)
    start = state.parameters.clone()
    for iteration in range(iterations):
        if iteration:
            pool.run(Task(COLLECT, index, iteration) for index in range(settings.sizes.num_slices))
        learn(state, pool, Cluster(settings.sizes), Schedules(7e-4, 0.2), Timeline())
        state.counters.iteration += 1
    pool.close()
    return state.parameters.clone(), state.parameters - start


def test_reward_gamma_scales_rewards_and_defaults_to_gamma() -> None:
    default, _ = learned(small_settings(), 2)
    same, _ = learned(small_settings(training__reward_gamma=0.999), 2)
    other, _ = learned(small_settings(training__reward_gamma=0.5), 2)
    assert torch.equal(default, same)
    assert not torch.equal(default, other)


@pytest.mark.parametrize(("env", "kind"), CASES)
def test_a2c_and_ppo_agree_over_whole_updates(env: str, kind: str) -> None:
    """Not bit for bit: collection recorded its log-probabilities in batches of another shape."""
    first, moved = learned(small_settings(env, kind, training__algorithm="ppo", **MATCHING), 3)
    second, _ = learned(small_settings(env, kind, training__algorithm="a2c", **MATCHING), 3)
    assert float(moved.abs().max()) > 1e-3
    assert float((first - second).abs().max()) < 1e-5


@pytest.mark.parametrize(("env", "kind"), CASES)
def test_without_a_lag_vtrace_aims_at_the_lambda_one_return(env: str, kind: str) -> None:
    """On samples of the learner's own policy, whose ratios are 1 but for rounding."""
    settings = small_settings(
        env, kind, training__algorithm="impala", training__batch_size=256, training__lag=0,
        training__n_steps=16, training__learning_rate=1e-3,
    )  # fmt: skip
    state, pool, _ = collected(settings)
    start = state.snapshot()
    learn(state, pool, Cluster(settings.sizes), Schedules(1e-3, 0.2), Timeline())
    rollout = state.memory.rollout(0)
    pool.close()
    found, advantage = rollout.target_return.copy(), rollout.advantage.copy()
    assert rollout.episode_start[1:].any() or kind == "nature"
    state.rewind(start)
    reward = state.rewards.scaled(rollout)
    ppo.targets(rollout, reward, settings.changed("training", gae_lambda=1.0).training)
    np.testing.assert_allclose(found, rollout.target_return, rtol=0, atol=1e-5)
    np.testing.assert_allclose(advantage, rollout.advantage, rtol=0, atol=1e-5)


# --- A2C beside the published code --------------------------------------------------------------------------


def published_advantages(rollout: Any, gamma: float, gae_lambda: float) -> np.ndarray:
    """Stable-Baselines3's loop: a cut episode has its last value added to the reward, and ends."""
    reward = rollout.reward + gamma * np.where(rollout.truncated.astype(bool), rollout.final_value, 0)
    advantage, following = np.zeros_like(reward), np.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        goes_on = 1.0 - rollout.episode_start[t + 1]
        delta = reward[t] + gamma * rollout.value[t + 1] * goes_on - rollout.value[t]
        advantage[t] = following = delta + gamma * gae_lambda * goes_on * following
    return advantage


def published_step(policy: Policy, optimizer: torch.optim.Optimizer, rollout: Any, training: Any) -> None:
    """Its update: the mean of the squared errors has no 1/2, so its value_coef is half of ours."""
    advantage = torch.from_numpy(published_advantages(rollout, training.gamma, training.gae_lambda)).flatten()
    returns = advantage + torch.from_numpy(rollout.value[:-1]).flatten()
    output = policy(torch.from_numpy(rollout.observation[:-1]).flatten(0, 1))
    chosen = torch.distributions.Categorical(logits=output.action)
    log_prob = chosen.log_prob(torch.from_numpy(rollout.action).flatten())
    policy_loss = -(advantage * log_prob).mean()
    value_loss = torch.nn.functional.mse_loss(returns, output.value)
    entropy = chosen.entropy().mean()
    loss = policy_loss + training.value_coef / 2 * value_loss - training.entropy_coef * entropy
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), training.max_grad_norm)
    optimizer.step()


def test_a2c_learns_what_the_published_code_learns() -> None:
    settings = small_settings(
        training__algorithm="a2c", training__n_steps=5, training__batch_size=80, training__value_coef=1.0,
        training__normalize_rewards=False, env__kwargs={"max_episode_steps": 12},
    )  # fmt: skip
    state, pool, policy = collected(settings)
    theirs, cut = copy.deepcopy(policy), 0
    optimizer = torch.optim.RMSprop(theirs.parameters(), 7e-4, alpha=0.99, eps=1e-5)
    start = state.parameters.clone()
    for iteration in range(20):
        if iteration:
            pool.run(Task(COLLECT, index, iteration) for index in range(settings.sizes.num_slices))
        rollout = state.memory.rollout(iteration)
        cut += int(rollout.truncated.sum())
        published_step(theirs, optimizer, rollout, settings.training)
        learn(state, pool, Cluster(settings.sizes), Schedules(7e-4, 0.2), Timeline())
        state.counters.iteration += 1
    pool.close()
    expected = torch.cat([parameter.detach().flatten() for parameter in theirs.parameters()])
    found = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
    assert cut and float((state.parameters - start).abs().max()) > 1e-2
    assert float((found - expected).abs().max()) < 1e-5
