import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.settings import env_names


@pytest.mark.parametrize("game", env_names.PROCGEN_GAMES)
def test_three_spellings_of_each_game(game: str) -> None:
    for spelling in (game, f"procgen-{game}-v0", f"procgen:procgen-{game}-v0"):
        assert env_names.procgen_game(spelling) == game
        assert env_names.canonical(spelling) == f"procgen:procgen-{game}-v0"


def test_gymnasium_ids_stay_as_they_are() -> None:
    assert env_names.canonical("CartPole-v1") == "CartPole-v1"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("coinrum", "coinrun"),
        ("procgen-coinrum-v0", "coinrun"),
        ("procgen:procgen-mazes-v0", "maze"),
        ("CartPol-v1", "CartPole-v1"),
        ("nomodule.xyz:Env-v0", "PYTHONPATH"),
    ],
)
def test_unknown_names_get_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as caught:
        env_names.canonical(wrong)
    assert "\n" not in str(caught.value)
