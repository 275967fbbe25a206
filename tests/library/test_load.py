"""`parallel_ppo.load`: actions as `env.step` takes them, for one observation and for a batch."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import parallel_ppo
from parallel_ppo.commands.train import train_sequential
from parallel_ppo.envs.build import spaces_of
from parallel_ppo.settings.schema import EnvSettings

FLAGS = [
    "--num-envs",
    "8",
    "--n-steps",
    "32",
    "--batch-size",
    "64",
    "--total-timesteps",
    "256",
    "--quiet",
    "--num-threads",
    "1",
]
ENVS = {
    "CartPole-v1": ["--set=training.normalize_observations=true"],
    "Pendulum-v1": ["--set=training.normalize_observations=true"],
    "tests.envs.sample_envs:Camera-v0": [],
}


@pytest.fixture(scope="module", params=ENVS)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> parallel_ppo.Policy:
    run = tmp_path_factory.mktemp("load") / "run"
    flags = [*FLAGS, "--env", request.param, *ENVS[request.param]]
    assert train_sequential([*flags, "--output-dir", str(run)]) == 0
    return parallel_ppo.load(run)


def test_one_and_a_batch(policy: parallel_ppo.Policy) -> None:
    envs = gymnasium.make_vec(policy.settings.env.id, num_envs=3, vectorization_mode="sync")
    batch, _ = envs.reset(seed=1)
    one, _ = gymnasium.make(policy.settings.env.id).reset(seed=1)
    for deterministic in (True, False):
        actions = policy.act(batch, deterministic=deterministic)
        assert envs.action_space.contains(actions)
        assert policy.action_space.contains(policy.act(one, deterministic=deterministic))
    first = policy.act(one, deterministic=True)
    assert np.allclose(policy.act(batch, deterministic=True)[0], first, atol=1e-5)
    assert np.isclose(policy.value(batch)[0], policy.value(one), atol=1e-4)
    assert isinstance(policy.value(one), float)
    envs.step(policy.act(batch))
    envs.close()


def test_the_distribution_is_the_one_that_is_drawn_from(policy: parallel_ppo.Policy) -> None:
    observation = policy.observation_space.sample()
    distribution = policy.distribution(observation)
    mode = (
        distribution.mode
        if not isinstance(distribution, list)
        else torch.stack([d.mode for d in distribution])
    )
    chosen = policy.act(observation, deterministic=True)
    if isinstance(policy.action_space, gymnasium.spaces.Box):
        mode = mode.clamp(*map(torch.from_numpy, (policy.action_space.low, policy.action_space.high)))
    assert np.allclose(mode.numpy(), chosen, atol=1e-5)
    draws = np.stack([policy.act(observation) for _ in range(400)])
    if hasattr(distribution, "probs"):
        assert np.allclose(
            np.bincount(draws, minlength=len(distribution.probs)) / 400, distribution.probs, atol=0.1
        )


def test_the_same_seed_draws_the_same_actions(tmp_path: Path) -> None:
    assert train_sequential([*FLAGS, "--env", "CartPole-v1", "--output-dir", str(tmp_path / "run")]) == 0
    observation = np.zeros((20, 4), np.float32)
    drawn = [parallel_ppo.load(str(tmp_path / "run"), seed=seed).act(observation) for seed in (0, 0, 1)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    with pytest.raises(parallel_ppo.InputError, match=r"observation: got an observation of shape \(7,\)"):
        parallel_ppo.load(tmp_path / "run").act(np.zeros(7))
    with pytest.raises(parallel_ppo.InputError, match="no such file or directory"):
        parallel_ppo.load(tmp_path / "nothing")


def test_procgen_s_spaces() -> None:
    observation, action = spaces_of(EnvSettings(id="coinrun"))
    assert (observation.shape, observation.dtype, action.n) == ((64, 64, 3), np.uint8, 15)
