"""Environment names: the 16 Procgen games in their three spellings, and Gymnasium ids."""

import difflib

from parallel_ppo.arguments import shortened
from parallel_ppo.exits import InputError
from parallel_ppo.settings.named_code import import_for

PROCGEN_GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip
# All have easy and hard levels. Asked for a mode that a game lacks, Procgen ends the process.
GAMES_WITH_MODE = {
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"),
}


def procgen_game(env_id: str) -> str | None:
    """`coinrun` for any spelling of that game; None for what is not Procgen."""
    name = env_id.removeprefix("procgen:")
    name = name.removeprefix("procgen-").removesuffix("-v0") if name.startswith("procgen-") else name
    return name if name in PROCGEN_GAMES else None


def check_mode(env_id: str, distribution_mode: str) -> None:
    """That a Procgen game has such levels."""
    game, able = procgen_game(env_id), GAMES_WITH_MODE.get(distribution_mode, PROCGEN_GAMES)
    if game is not None and game not in able:
        raise InputError(
            f"env.distribution_mode: {game} has no {distribution_mode} levels, only {', '.join(able)} have;"
            " use easy or hard"
        )


def canonical(env_id: str) -> str:
    """The spelling that is saved and compared. Raises InputError for a name nobody knows."""
    game = procgen_game(env_id)
    if game is not None:
        return f"procgen:procgen-{game}-v0"
    if env_id.startswith("procgen"):
        raise InputError(
            f"env.id: {shortened(env_id)!r} is not a Procgen"
            f" game{_nearest(env_id.removeprefix('procgen:'), _procgen_spellings())}"
        )
    _check_gymnasium(env_id)
    return env_id


def _procgen_spellings() -> list[str]:
    return [*PROCGEN_GAMES, *(f"procgen-{game}-v0" for game in PROCGEN_GAMES)]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; the games are {', '.join(PROCGEN_GAMES)}"


def _check_gymnasium(env_id: str) -> None:
    import gymnasium

    module, _, name = env_id.rpartition(":")
    if module:
        import_for("env.id", module, env_id)
    if name in gymnasium.registry:
        return
    close = difflib.get_close_matches(name, [*PROCGEN_GAMES, *gymnasium.registry], n=1, cutoff=0.6)
    hint = (
        f"; did you mean {close[0]!r}?"
        if close
        else "; expected a Procgen game such as coinrun or a registered Gymnasium id such as CartPole-v1"
    )
    raise InputError(f"env.id: no environment is called {shortened(env_id)!r}{hint}")
