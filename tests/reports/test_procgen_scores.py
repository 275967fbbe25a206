import pytest

from parallel_ppo.reports.procgen_scores import (
    EASY_RANGE,
    HARD_RANGE,
    ON_200_LEVELS,
    ON_ALL_LEVELS,
    game_name,
    normalized_score,
    published_curve,
)


def test_all_sixteen_games_have_everything():
    assert len(EASY_RANGE) == 16
    assert EASY_RANGE.keys() == HARD_RANGE.keys() == ON_200_LEVELS.keys() == ON_ALL_LEVELS.keys()
    assert all(low < high for ranges in (EASY_RANGE, HARD_RANGE) for low, high in ranges.values())


@pytest.mark.parametrize("name", ["coinrun", "procgen-coinrun-v0", "procgen:procgen-coinrun-v0"])
def test_names(name):
    assert game_name(name) == "coinrun"


def test_other_environments_have_no_game():
    assert game_name("CartPole-v1") is None
    assert normalized_score("CartPole-v1", 3.0, distribution_mode="easy") is None


def test_normalized_scores():
    assert normalized_score("starpilot", 64.0, distribution_mode="easy") == 1.0
    assert normalized_score("starpilot", 2.5, distribution_mode="easy") == 0.0
    assert normalized_score("starpilot", 35.0, distribution_mode="hard") == 1.0
    assert normalized_score("starpilot", 35.0, distribution_mode="memory") is None


def test_published_values_belong_to_their_levels():
    limited = published_curve("fruitbot", distribution_mode="easy", num_levels=200)
    assert [(point.steps, point.value) for point in limited] == [
        (1_000_000, 5.7), (2_000_000, 17.1), (5_000_000, 24.2), (25_000_000, 29.7),
    ]  # fmt: skip
    assert published_curve("fruitbot", distribution_mode="easy", num_levels=0)[0].value == 11.2
    assert published_curve("fruitbot", distribution_mode="easy", num_levels=10) == []
    assert published_curve("fruitbot", distribution_mode="hard", num_levels=200) == []
