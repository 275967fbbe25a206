"""Train several games and seeds in a row and write one page of results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from parallel_ppo.arguments import Parser, as_typed, hours, next_free, number_list, whole_number
from parallel_ppo.exits import InputError
from parallel_ppo.reports.command_line import make_directory, progress_bar
from parallel_ppo.reports.errors import TrainerFailed
from parallel_ppo.reports.procgen_scores import EASY_RANGE
from parallel_ppo.reports.suite import Plan, load_plan, load_suite_runs, run_name, save_plan, summarise
from parallel_ppo.reports.suite_page import write_suite
from parallel_ppo.reports.trainer import train

EXAMPLES = (
    "tools/suite.py --games coinrun,starpilot,fruitbot --seeds 1,2,3 --total-timesteps 1e6",
    "tools/suite.py --games all --seeds 1 --duration 30m --output-dir runs/all-games -- --policy nature",
    "tools/suite.py --resume runs/all-games",
)
DEFAULT_HOURS = 1.0  # of each run
SAVED_AND_STOPPED = (75, 130)


def main(argv: Sequence[str] | None = None) -> int:
    given, trainer_arguments = _split(list(sys.argv[1:] if argv is None else argv))
    flags = _parser().parse_args(given)
    console = Console(quiet=flags.quiet)
    directory, plan = _open_suite(flags, trainer_arguments)
    console.print(
        f"{len(plan.names())} runs, {len(plan.finished)} of them finished, in {escape(str(directory))}",
        soft_wrap=True,
    )
    code = _run_all(plan, directory, console)
    written = _write_results(load_plan(directory), directory)
    console.print("wrote " + ", ".join(escape(str(path)) for path in written), soft_wrap=True)
    return code


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What follows `--` goes to the trainer as it is."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parser() -> Parser:
    parser = Parser(
        description=f"{__doc__} Flags after `--` go to train_parallel_timed.py.", examples=EXAMPLES
    )
    add = parser.add_argument
    add("--games", help="games or environment ids, by commas; `all` for the 16 of Procgen")
    add("--seeds", default="1", help="seeds, by commas (default: %(default)s)")
    add("--total-timesteps", type=whole_number, metavar="STEPS", help="of each run")
    add("--duration", type=hours, metavar="TIME", help="of each run: hours, or 90s, 5m (default: 1 hour)")
    add("--output-dir", metavar="DIR", help="where to write (default: the next free runs/suite-N)")
    add("--resume", metavar="DIR", help="go on with a suite that was stopped")
    return parser


def _open_suite(flags: argparse.Namespace, trainer_arguments: list[str]) -> tuple[Path, Plan]:
    if flags.resume:
        if flags.games or flags.total_timesteps or flags.duration or flags.output_dir or trainer_arguments:
            raise InputError(
                f"--resume {flags.resume} takes its settings from that suite; leave the other flags out"
            )
        directory = Path(flags.resume)
        plan = replace(load_plan(directory), failed={})
        save_plan(plan, directory)
        return directory, plan
    plan = _new_plan(flags, trainer_arguments)
    directory = _new_directory(flags.output_dir)
    save_plan(plan, directory)
    return directory, plan


def _new_plan(flags: argparse.Namespace, trainer_arguments: list[str]) -> Plan:
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
        seeds=list(dict.fromkeys(number_list(flags.seeds, flag="--seeds"))),
        total_timesteps=flags.total_timesteps,
        duration=flags.duration,
        arguments=trainer_arguments,
    )


def _new_directory(given: str | None) -> Path:
    if given is None:
        return make_directory(next_free("runs/suite-{}"))
    directory = make_directory(Path(given))
    if any(directory.iterdir()):
        raise InputError(
            f"{directory} is not empty; go on with --resume {directory}, or give --output-dir a new name"
        )
    return directory


def _run_all(plan: Plan, directory: Path, console: Console) -> int:
    """Run what is not finished; a failed run does not stop the others. The page is up to date after each."""
    code = 0
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(plan.names()), completed=len(plan.finished))
        for game, seed in plan.pairs():
            name = run_name(game, seed)
            if name in plan.finished:
                continue
            done = len(plan.finished) + len(plan.failed)
            progress.update(task, description=name, completed=done)
            show = partial(_show, progress, task, done, plan)
            try:
                _train(plan, game, seed, directory, show)
                plan = replace(plan, finished=[*plan.finished, name])
                console.print(f"{escape(name)}: done")
            except TrainerFailed as error:
                if error.exit_code in SAVED_AND_STOPPED:
                    raise
                plan, code = (
                    replace(plan, failed={**plan.failed, name: str(error)}),
                    max(code, abs(error.exit_code)),
                )
                console.print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
            save_plan(plan, directory)
            _write_results(plan, directory)
    return code


def _train(plan: Plan, game: str, seed: int, directory: Path, show: Callable[[int, float], None]) -> None:
    name = run_name(game, seed)
    target, output = directory / name, directory / f"{name}.log"
    try:
        train(
            _arguments(plan, game, seed, target),
            run_directory=target,
            output=output,
            on_progress=show,
        )
    except KeyboardInterrupt:
        print("stopped; go on with:", as_typed(f"tools/suite.py --resume {directory}"), file=sys.stderr)
        raise


def _show(progress: Progress, task: TaskID, done: int, plan: Plan, steps: int, seconds: float) -> None:
    share = steps / plan.total_timesteps if plan.total_timesteps else seconds / (3600 * (plan.duration or 1))
    progress.update(task, completed=done + min(1.0, share))


def _write_results(plan: Plan, directory: Path) -> list[Path]:
    runs = load_suite_runs(plan, directory)
    return write_suite(summarise(plan, runs), runs, directory)


def _arguments(plan: Plan, game: str, seed: int, target: Path) -> list[str]:
    budget = (
        ["--total-timesteps", str(plan.total_timesteps)]
        if plan.total_timesteps
        else ["--duration", str(plan.duration)]
    )
    if (target / "checkpoints" / "latest").exists():
        return ["--resume", str(target), *budget, "--quiet"]
    return [
        "--env",
        game,
        "--seed",
        str(seed),
        *budget,
        *plan.arguments,
        "--output-dir",
        str(target),
        "--quiet",
    ]
