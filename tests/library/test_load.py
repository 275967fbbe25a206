"""`parallel_ppo.load`: actions as `env.step` takes them, for one observation and for a batch."""

import copy
import pickle
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import parallel_ppo
from parallel_ppo.commands.train import train_sequential
from parallel_ppo.envs.families import spaces_of
from parallel_ppo.settings import named_code
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


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("cartpole") / "run"
    assert train_sequential([*FLAGS, "--env", "CartPole-v1", "--output-dir", str(run)]) == 0
    return run


def test_a_policy_can_be_copied_and_pickled(cartpole: Path) -> None:
    """The copy draws the same actions from here on."""
    policy = parallel_ppo.load(cartpole, seed=3)
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    policy.act(rows)
    copies = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]
    expected = policy.act(rows)
    for other in copies:
        assert np.array_equal(other.act(rows), expected)
        weights = other.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())
    assert not np.array_equal(policy.act(rows), expected)


def test_predict_is_as_in_stable_baselines3(cartpole: Path) -> None:
    policy = parallel_ppo.load(cartpole)
    rows = np.zeros((3, 4), np.float32)
    action, state = policy.predict(rows, deterministic=True)
    assert np.array_equal(action, policy.act(rows, deterministic=True)) and state is None
    policy.state_dict()["action_head.bias"].fill_(9)
    assert np.array_equal(policy.act(rows, deterministic=True), action), "copies"


def test_a_recurrent_policy_remembers_until_it_is_reset(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [*FLAGS, "--env", "CartPole-v1", "--recurrent", "lstm", "--set", "recurrence.size=16"]
    assert train_sequential([*flags, "--output-dir", str(run)]) == 0
    policy, rows = parallel_ppo.load(run), np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def logits() -> np.ndarray:
        return policy.distribution(rows).logits.numpy()

    first = logits()
    assert np.array_equal(logits(), first), "looking changes nothing"
    policy.act(rows)
    second, copied = logits(), copy.deepcopy(policy)
    assert not np.allclose(second, first)
    policy.reset([False, True, False])
    assert np.array_equal(logits()[1], first[1]) and np.array_equal(logits()[::2], second[::2])
    policy.reset()
    assert np.array_equal(logits(), first)
    assert np.array_equal(copied.distribution(rows).logits.numpy(), second)
    with pytest.raises(parallel_ppo.InputError, match=r"got 2 after 3, .* call reset\(\)"):
        policy.act(rows[:2])
    _, state = policy.predict(rows)
    _, later = policy.predict(rows, state)
    _, again = policy.predict(rows, state, [True, False, True])
    assert np.array_equal(again[[0, 2]], state[[0, 2]]) and np.array_equal(again[1], later[1])
    assert not np.allclose(state, later)


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


def test_the_same_seed_draws_the_same_actions(cartpole: Path) -> None:
    observation = np.zeros((20, 4), np.float32)
    drawn = [parallel_ppo.load(str(cartpole), seed=seed).act(observation) for seed in (0, 0, 1)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    with pytest.raises(parallel_ppo.InputError, match=r"observation: got an observation of shape \(7,\)"):
        parallel_ppo.load(cartpole).act(np.zeros(7))
    with pytest.raises(parallel_ppo.InputError, match="no such file or directory"):
        parallel_ppo.load(cartpole / "nothing")


BAD = {
    "a NaN": (np.array([0, np.nan, 0, 0]), "observation: contains nan"),
    "an infinity": (np.array([[0, 0, 0, 0], [0, 0, 0, -np.inf]]), "observation: contains -inf"),
    "beyond float32": (np.full(4, 1e300), "observation: contains inf"),
    "ragged": ([[1, 2], [3]], "observation: got what is no array of numbers"),
    "a graph": (torch.zeros(4, requires_grad=True), r"no array of numbers \(.*detach"),
    "words": ("left", r"observation: got an observation of shape \(\)"),
}


@pytest.mark.parametrize("what", BAD)
def test_no_action_follows_from_what_is_no_observation(cartpole: Path, what: str) -> None:
    observation, line = BAD[what]
    policy = parallel_ppo.load(cartpole)
    for use in (policy.act, policy.value, policy.distribution):
        with pytest.raises(parallel_ppo.InputError, match=line) as caught:
            use(observation)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "kernels"),
    [
        ("CartPole-v1", "native"),
        ("CartPole-v1", "torch"),
        ("tests.envs.sample_envs:Camera-v0", "torch"),
        pytest.param("coinrun", "native", marks=pytest.mark.procgen),
    ],
)
def test_what_the_caller_did_to_torch_changes_nothing(env: str, kernels: str, tmp_path: Path) -> None:
    flags = [*FLAGS, "--env", env, "--set", f"training.kernels={kernels}", "--output-dir", str(tmp_path)]
    assert train_sequential(flags) == 0
    before = parallel_ppo.load(tmp_path)
    observation = before.observation_space.sample()

    def seen(policy: parallel_ppo.Policy) -> tuple:
        mean = policy.distribution(observation).mean  # NaN of choices
        draws = np.stack([policy.act(observation) for _ in range(5)])
        likely = policy.act(observation, deterministic=True)
        return policy.policy_sha256, policy.value(observation), str(mean.tolist()), str(likely), str(draws)

    expected = seen(before)
    for change in (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_device("meta")):
        try:
            change()
            assert seen(before)[:4] == expected[:4], "loaded before"
            assert seen(parallel_ppo.load(tmp_path)) == expected, "loaded after"
            assert (torch.get_default_dtype() == torch.float64) != (torch.get_default_device().type == "meta")
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device("cpu")


def test_threads_share_a_policy(cartpole: Path) -> None:
    policy = parallel_ppo.load(cartpole)
    batches = np.random.default_rng(0).normal(size=(4, 5000, 4)).astype(np.float32)
    expected = [policy.value(batch) for batch in batches]
    found: list[list[np.ndarray]] = [[] for _ in batches]

    def use(index: int) -> None:
        found[index].extend(policy.value(batches[index]) for _ in range(20))

    threads = [threading.Thread(target=use, args=(index,)) for index in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, values in zip(expected, found, strict=True):
        assert all(np.array_equal(one, value) for value in values) and len(values) == 20


@pytest.mark.parametrize("says", ["array", "tuple"])
def test_actions_that_are_not_allowed(says: str, tmp_path: Path) -> None:
    env_id, kwargs = "tests.envs.sample_envs:Masked-v0", f"--set=env.kwargs={{says: {says}}}"
    assert train_sequential([*FLAGS, "--env", env_id, kwargs, "--output-dir", str(tmp_path)]) == 0
    policy = parallel_ppo.load(tmp_path)
    env = gymnasium.make(env_id, says=says)
    observation, info = env.reset(seed=1)
    for step in range(200):  # the environment raises for what it does not allow
        mask = info["action_mask"]
        chosen = policy.act(observation, deterministic=step % 2 == 0, action_mask=mask)
        observation, _, ends, cut, info = env.step(chosen)
        if ends or cut:
            observation, info = env.reset()
    mask = info["action_mask"]
    parts = policy.distribution(observation, action_mask=mask)
    for part, allowed in zip(
        parts if says == "tuple" else [parts], mask if says == "tuple" else [mask], strict=True
    ):
        assert ((part.probs > 0).numpy() == (allowed != 0)).all()
    two = np.stack([observation] * 2)
    assert len(policy.act(two, action_mask=[mask, mask])) == 2
    for given, line in (
        (None, "Masked-v0 says which actions are allowed; give its info"),
        (np.ones(3), r"action_mask: got an info\['action_mask'\] of 3 numbers"),
        ([mask] * 3, "action_mask: got"),
    ):
        with pytest.raises(parallel_ppo.InputError, match=line):
            policy.act(observation, action_mask=given)
    with pytest.raises(parallel_ppo.InputError, match="action_mask: got 1 for 2 observations"):
        policy.act(two, action_mask=[mask])


def test_a_policy_needs_neither_its_environment_nor_trust_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "tests.envs.sample_envs:Camera-v0"
    assert train_sequential([*FLAGS, "--env", env, "--output-dir", str(tmp_path)]) == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another-user"))
    monkeypatch.setattr(named_code, "import_for", None)
    policy = parallel_ppo.load(tmp_path)
    assert policy.settings.env.id == env and policy.action_space.contains(
        policy.act(policy.observation_space.sample())
    )
    with pytest.raises(parallel_ppo.InputError, match=r"sets env.id .*; use trust=True if"):
        parallel_ppo.evaluate(tmp_path)


def test_procgen_s_spaces() -> None:
    observation, action = spaces_of(EnvSettings(id="coinrun"))
    assert (observation.shape, observation.dtype, action.n) == ((64, 64, 3), np.uint8, 15)
