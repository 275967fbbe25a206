import numpy as np

from parallel_ppo.keyed import generator, integer_seed


def test_same_key_same_draws_in_any_order() -> None:
    later = generator(1, "action", 0, 5).random(4)
    generator(1, "action", 0, 4).random(1000)
    assert np.array_equal(later, generator(1, "action", 0, 5).random(4))


def test_every_part_of_the_key_matters() -> None:
    keys = [
        (1, "action", 0, 5),
        (2, "action", 0, 5),
        (1, "minibatch", 0, 5),
        (1, "action", 5, 0),
        (1 << 40, "action", 0, 5),
    ]
    draws = {tuple(generator(*key).random(4)) for key in keys}
    assert len(draws) == len(keys)


def test_seeds_for_others_are_positive_31_bits() -> None:
    seeds = {integer_seed(3, "reset", env, episode) for env in range(50) for episode in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**31 for seed in seeds)
