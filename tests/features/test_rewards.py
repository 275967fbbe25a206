import numpy as np

from parallel_ppo.features.moments import EPSILON, Moments
from parallel_ppo.features.rewards import RewardNormalizer


def test_merged_moments_equal_those_of_all_samples() -> None:
    samples = np.random.default_rng(0).normal(3, 2, size=(100, 4))
    parts = [Moments.of(samples[:10]), Moments.of(samples[10:11]), Moments.of(samples[11:])]
    merged = Moments.empty((4,))
    for part in parts:
        merged = merged.merged(part)
    np.testing.assert_allclose(merged.mean, samples.mean(0))
    np.testing.assert_allclose(merged.variance, samples.var(0))


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return() -> None:
    draws = np.random.default_rng(1)
    reward = draws.normal(size=(30, 3)).astype(np.float32)
    start = draws.random((31, 3)) < 0.2
    normalizer = RewardNormalizer(0.9, np.zeros(3), Moments.empty())
    scaled = normalizer.scale(reward, start, clip=10.0)

    returns, running = [], np.zeros(3)
    for t in range(30):
        for env in range(3):
            running[env] = running[env] * 0.9 + reward[t, env]
        returns.append(running.copy())
        for env in range(3):
            if start[t + 1, env]:
                running[env] = 0
    np.testing.assert_allclose(scaled, reward / np.sqrt(np.var(returns) + EPSILON), rtol=1e-5)
    np.testing.assert_allclose(normalizer.running, running)


def test_scaled_rewards_are_clipped() -> None:
    reward = np.zeros((1000, 1), np.float32)
    reward[500] = 1000
    scaled = RewardNormalizer(0.0, np.zeros(1), Moments.empty()).scale(reward, np.ones((1001, 1)), 10.0)
    assert scaled.max() == 10


def test_a_discounted_return_ends_with_its_episode_even_between_iterations() -> None:
    """Where the first row opens an episode (one that could not be restored), nothing of the old one is
    left.
    """
    normalizer = RewardNormalizer(0.5, np.zeros(2), Moments.empty())
    normalizer.running[:] = 8.0
    normalizer.scale(np.ones((1, 2)), np.array([[1, 0], [0, 0]]), clip=10.0)
    assert normalizer.running.tolist() == [1.0, 5.0]
