"""`tools/suite.py`: train several games, settings and seeds, evaluate them, and write one page of results."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from parallel_ppo.arguments import (
    Parser,
    hours,
    next_free,
    number_from,
    number_list,
    positive,
    whole_number,
)
from parallel_ppo.commands.suite_runs import run_all, write_results
from parallel_ppo.exits import InputError
from parallel_ppo.printable import count
from parallel_ppo.reports import mujoco_scores
from parallel_ppo.reports.command_line import add_format_flag, new_directory, shown
from parallel_ppo.reports.procgen_scores import EASY_RANGE
from parallel_ppo.reports.suite import Plan, has_plain_names, load_plan, save_plan
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically
from parallel_ppo.storage.user_key import is_signed, signature

EXAMPLES = (
    "tools/suite.py --games coinrun,starpilot,fruitbot --seeds 1,2,3 --total-timesteps 1e6",
    "tools/suite.py --games all --seeds 1 --duration 30m --output-dir runs/all-games -- --policy nature",
    (
        "tools/suite.py --games all --setting plain= --setting 'anneal=--set"
        " training.learning_rate_schedule=linear' -- --num-levels 200"
    ),
    "tools/suite.py --suite mujoco --output-dir runs/mujoco",
    "tools/suite.py --resume runs/all-games",
)
SIGNATURE = ".signature"  # of this user, for suite.json
DEFAULT_HOURS = 1.0  # of each run
DEFAULT_EPISODES = 100


def main(argv: Sequence[str] | None = None) -> int:
    given, trainer_arguments = _split(list(sys.argv[1:] if argv is None else argv))
    flags = _parser().parse_args(given)
    console = Console(quiet=flags.quiet)
    directory, plan = _open_suite(flags, trainer_arguments)
    console.print(
        f"{count(len(plan.names()), 'run')}, {len(plan.finished)} of them finished, in {shown(directory)}",
        soft_wrap=True,
    )
    code = run_all(plan, directory, console)
    written = write_results(load_plan(directory), directory, flags.format)
    console.print("wrote " + ", ".join(shown(path) for path in written), soft_wrap=True)
    return code


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What follows `--` goes to the trainer as it is."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser() -> Parser:
    description = (
        "Train several games, settings and seeds, evaluate each run on its levels and on unseen ones,\nand write"
        " one page of results. Flags after `--` go to the trainer."
    )
    parser = Parser(description=description, examples=EXAMPLES)
    add = parser.add_argument
    add("--games", help="games or environment ids, by commas; `all` for the 16 of Procgen")
    benchmark = "mujoco: ten tasks, ten seeds, a million steps; other flags override each of these"
    add("--suite", choices=["mujoco"], help=benchmark)
    add("--seeds", help="seeds, by commas (default: 1)")
    add("--total-timesteps", type=whole_number, metavar="STEPS", help="of each run")
    add("--duration", type=hours, metavar="TIME", help="of each run: hours, or 90s, 5m (default: 1 hour)")
    settings = "compare settings: a name and the trainer's flags for it (repeatable)"
    add("--setting", action="append", default=[], metavar="NAME=FLAGS", help=settings)
    episodes = "to evaluate each run on training levels, and as many on unseen ones; 0: none (default: 100)"
    add("--eval-episodes", type=number_from(0), metavar="N", help=episodes)
    at_once = "runs at the same time, each on its share of the cores (default: as many as use all cores)"
    add("--at-once", type=positive, metavar="N", help=at_once)
    add("--output-dir", metavar="DIR", help="where to write (default: the next free runs/suite-N)")
    add("--resume", metavar="DIR", help="go on with a suite that was stopped")
    add("--trust-suite", action="store_true", help="resume a suite of another user, with the flags it names")
    add_format_flag(parser)
    return parser


def _open_suite(flags: argparse.Namespace, trainer_arguments: list[str]) -> tuple[Path, Plan]:
    if flags.resume:
        own = (
            "games",
            "suite",
            "seeds",
            "total_timesteps",
            "duration",
            "output_dir",
            "setting",
            "eval_episodes",
        )
        if trainer_arguments or any(getattr(flags, name) not in (None, []) for name in own):
            raise InputError(
                f"--resume {flags.resume} takes its settings from that suite; leave all other flags but "
                "--at-once out"
            )
        directory = Path(flags.resume)
        plan = load_plan(directory)
        if not (flags.trust_suite or _is_own(plan, directory)):
            raise InputError(
                f"--resume {flags.resume}: its suite.json names flags for the trainer and was not signed with"
                " this user's key; use --trust-suite if you know where it comes from"
            )
        plan = replace(plan, failed={}, at_once=flags.at_once or plan.at_once)
        save_plan(plan, directory)
        return directory, plan
    plan = _new_plan(flags, trainer_arguments)
    if not has_plain_names(plan):
        raise InputError(f"--games {flags.games:.80}: expected names, by commas, such as coinrun,starpilot")
    directory = _new_directory(flags.output_dir)
    save_plan(plan, directory)
    write_atomically(directory / SIGNATURE, (signature(_work(plan)) or "").encode())
    return directory, plan


def _work(plan: Plan) -> bytes:
    """What a suite runs; the rest of its plan changes while it runs."""
    return json.dumps([plan.games, plan.seeds, plan.arguments, plan.settings]).encode()


def _is_own(plan: Plan, directory: Path) -> bool:
    try:
        return is_signed(read_regular(directory / SIGNATURE, 1024).decode("ascii"), _work(plan))
    except (Damaged, UnicodeDecodeError):
        return False


def _fill_in_mujoco(flags: argparse.Namespace) -> None:
    flags.games = flags.games or ",".join(mujoco_scores.TASKS)
    flags.seeds = flags.seeds or ",".join(map(str, mujoco_scores.SEEDS))
    if flags.duration is None and flags.total_timesteps is None:
        flags.total_timesteps = mujoco_scores.STEPS
    if flags.eval_episodes is None:
        flags.eval_episodes = 0  # published returns are of training


def _new_plan(flags: argparse.Namespace, trainer_arguments: list[str]) -> Plan:
    if flags.suite == "mujoco":
        _fill_in_mujoco(flags)
    if not flags.games:
        raise InputError("--games: is missing; give games by commas, such as coinrun,starpilot, or all")
    if flags.total_timesteps is None and flags.duration is None:
        flags.duration = DEFAULT_HOURS
    if None not in (flags.total_timesteps, flags.duration):
        raise InputError(
            "--duration: each run has one budget; give --total-timesteps or --duration, not both"
        )
    for name in ("total_timesteps", "duration"):
        value = getattr(flags, name)
        if value is not None and value <= 0:
            raise InputError(f"--{name.replace('_', '-')} {value}: expected more than 0")
    games = (
        sorted(EASY_RANGE)
        if flags.games == "all"
        else [game.strip() for game in flags.games.split(",") if game.strip()]
    )
    return Plan(
        games=list(dict.fromkeys(games)),
        seeds=list(dict.fromkeys(number_list(flags.seeds or "1", flag="--seeds"))),
        total_timesteps=flags.total_timesteps,
        duration=flags.duration,
        arguments=trainer_arguments,
        settings=_settings(flags.setting),
        evaluation_episodes=DEFAULT_EPISODES if flags.eval_episodes is None else flags.eval_episodes,
        at_once=flags.at_once,
    )


def _settings(given: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=FLAGS`, each name once; without any, one setting without a name."""
    settings: dict[str, list[str]] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
            raise InputError(
                f"--setting {text}: expected NAME=FLAGS, such as 'small=--set training.n_epochs=1'"
            )
        if name in settings:
            raise InputError(f"--setting {text}: {name} is given twice; expected a name for each setting")
        try:
            settings[name] = shlex.split(rest)
        except ValueError as error:
            raise InputError(f"--setting {text}: {error}; expected flags as on a command line") from None
    return settings or {"": []}


def _new_directory(given: str | None) -> Path:
    if given is None:
        return new_directory(next_free("runs/suite-{}"))
    return new_directory(Path(given), f"go on with --resume {given}, or give --output-dir a new name")
