import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.settings import gymnasium, procgen
from parallel_ppo.settings.env_families import canonical


@pytest.mark.parametrize("game", procgen.GAMES)
def test_three_spellings_of_each_game(game: str) -> None:
    for spelling in (game, f"procgen-{game}-v0", f"procgen:procgen-{game}-v0"):
        assert procgen.game_name(spelling) == game
        assert procgen.canonical(spelling) == f"procgen:procgen-{game}-v0"


def test_gymnasium_ids_stay_as_they_are() -> None:
    assert gymnasium.canonical("CartPole-v1") == "CartPole-v1"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("coinrum", "coinrun"),
        ("procgen-coinrum-v0", "coinrun"),
        ("procgen:procgen-mazes-v0", "maze"),
        ("CartPol-v1", "CartPole-v1"),
        ("Unheard-v0", "another package needs its module in front .module:Unheard-v0"),
        ("nomodule.xyz:Env-v0", "PYTHONPATH"),
        ("tests.envs.unregistered:Missing", "no environment is called"),
        ("tests.envs.unregistered:NOT_CALLABLE", "no environment is called"),
    ],
)
def test_unknown_names_get_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as caught:
        canonical(wrong)
    assert "\n" not in str(caught.value)
