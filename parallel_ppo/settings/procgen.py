"""Procgen as a kind of environment (`env_families.py`): names, options and rules."""

from collections.abc import Iterable

from parallel_ppo.exits import InputError
from parallel_ppo.settings.kinds import network_kind, that_read
from parallel_ppo.settings.schema import EnvSettings, Settings

NAME = "Procgen"
EXAMPLE = "a Procgen game such as coinrun"
MODULE = "parallel_ppo.envs.procgen"
HAS_LEVELS = True
LIBRARIES = "procgen", "procgen-mirror"
PLAYS_IN_PYTHON = False
GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip
# All games have easy and hard levels. Procgen ends the process if a game does not have the mode.
GAMES_WITH_MODE = {
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"),
}
NATIVE_OPTIONS = (
    "distribution_mode", "num_levels", "start_level", "use_sequential_levels", "use_backgrounds",
    "center_agent", "paint_vel_info", "use_generated_assets", "use_monochrome_assets", "restrict_themes",
)  # fmt: skip
SAMPLER_OPTIONS = ("plr_temperature", "plr_staleness")
OPTIONS = (*NATIVE_OPTIONS, "level_sampler", *SAMPLER_OPTIONS)
MAX_LEVEL = 2**31 - 1
MAX_SCORED_LEVELS = 100_000
CONFIGS = {
    "parallel": "ppo_parallel.yaml",
    "sequential": "ppo_sequential.yaml",
    "cluster": "ppo_cpu_cluster.yaml",
}


def names() -> Iterable[str]:
    return [*GAMES, *(f"procgen-{game}-v0" for game in GAMES)]


def recognizes(env_id: str) -> bool:
    return env_id.startswith("procgen") or env_id in GAMES


def game_name(env_id: str) -> str | None:
    """`coinrun` for every spelling of that game; None for an unknown name."""
    name = env_id.removeprefix("procgen:")
    name = name.removeprefix("procgen-").removesuffix("-v0") if name.startswith("procgen-") else name
    return name if name in GAMES else None


def short_name(env_id: str) -> str:
    return game_name(env_id) or env_id


def canonical(env_id: str) -> str | None:
    game = game_name(env_id)
    return f"procgen:procgen-{game}-v0" if game is not None else None


def names_code(env_id: str) -> bool:
    return False


def config_name(env_id: str, kind: str, algorithm: str) -> str:
    return CONFIGS[kind] if algorithm == "ppo" else f"procgen_{algorithm}.yaml"


def with_id(saved: EnvSettings, env_id: str) -> EnvSettings:
    """Another game takes the same options."""
    _check_mode(env_id, saved.distribution_mode)
    return saved.model_copy(update={"id": env_id})


def check(settings: Settings) -> None:
    env, policy = settings.env, settings.training.policy
    _check_mode(env.id, env.distribution_mode)
    if env.distribution_mode == "exploration" and (env.num_levels or env.start_level):
        raise InputError("env.num_levels and env.start_level: have no effect in exploration; remove them")
    if env.start_level + env.num_levels > MAX_LEVEL:
        raise InputError(
            f"env.start_level: the last level would be {env.start_level + env.num_levels - 1:,}; the largest is"
            f" {MAX_LEVEL - 1:,}"
        )
    if policy != "auto" and network_kind(policy).reads == "vectors":
        raise InputError(
            f"training.policy: {policy!r} reads vectors, but Procgen's observations are images; use"
            f" {that_read('images')}"
        )
    if env.level_sampler == "plr":
        _check_prioritized(env)
        return
    for option in SAMPLER_OPTIONS:
        if getattr(env, option) != EnvSettings.model_fields[option].default:
            raise InputError(f"env.{option}: has no effect unless env.level_sampler is plr; remove it")


def _check_mode(env_id: str, distribution_mode: str) -> None:
    game, games = game_name(env_id), GAMES_WITH_MODE.get(distribution_mode, GAMES)
    if game not in games:
        raise InputError(
            f"env.distribution_mode: {game} has no {distribution_mode} levels, only {', '.join(games)} have;"
            " use easy or hard"
        )


def _check_prioritized(env: EnvSettings) -> None:
    if not 0 < env.num_levels <= MAX_SCORED_LEVELS:
        raise InputError(
            f"env.level_sampler: plr keeps a score for each level, so env.num_levels must be 1 to"
            f" {MAX_SCORED_LEVELS}, such as 200; got {env.num_levels}"
        )
    if env.use_sequential_levels:
        raise InputError("env.use_sequential_levels: cannot be combined with env.level_sampler=plr")
