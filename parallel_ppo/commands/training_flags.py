"""The flags of the training commands, and the settings that follow from them, a file and a run that is
resumed.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallel_ppo.arguments import (
    Parser,
    UnitlessHours,
    hours,
    named_run,
    number,
    number_or_auto,
    shortened,
    whole_number,
)
from parallel_ppo.cluster.engines import find_engine, settings_from_engine
from parallel_ppo.commands.budgets import with_budgets
from parallel_ppo.exits import InputError
from parallel_ppo.settings.env_families import canonical, family_of
from parallel_ppo.settings.layers import check_sections, load_settings, nearest, read_settings
from parallel_ppo.settings.schema import (
    STOP_CONDITIONS,
    EnvSettings,
    Settings,
    TrainingSettings,
    shown_default,
)
from parallel_ppo.settings.yaml_files import parse_value, read_yaml
from parallel_ppo.storage.run_directory import run_of

CONFIG = Path(__file__).resolve().parents[1] / "config"  # in a checkout, a link to the one at the root

VECTORS = "vectors.yaml"
Flags = dict[str, tuple[str, Callable[[str], Any]]]  # flag -> key and converter
COMMON_FLAGS: Flags = {
    "--duration": ("training.duration", hours),
    "--total-timesteps": ("training.total_timesteps", whole_number),
    "--env": ("env.id", str),
    "--algorithm": ("training.algorithm", str),
    "--curiosity": ("curiosity.kind", str),
    "--recurrent": ("recurrence.kind", str),
    "--num-envs": ("env.num_envs", whole_number),
    "--num-levels": ("env.num_levels", whole_number),
    "--start-level": ("env.start_level", whole_number),
    "--distribution-mode": ("env.distribution_mode", str),
    "--n-steps": ("training.n_steps", whole_number),
    "--n-epochs": ("training.n_epochs", whole_number),
    "--batch-size": ("training.batch_size", whole_number),
    "--learning-rate": ("training.learning_rate", number),
    "--policy": ("training.policy", str),
    "--init-from": ("training.init_from", str),
    "--seed": ("training.seed", whole_number),
}
PARALLEL_FLAGS: Flags = {
    "--num-workers": ("parallel.num_workers", number_or_auto),
    "--num-envs-per-worker": ("parallel.num_envs_per_worker", whole_number),
}
CLUSTER_FLAGS: Flags = {
    "--num-workers": ("parallel.num_workers", number_or_auto),
    "--nnodes": ("cluster.nnodes", whole_number),
    "--master-addr": ("cluster.master_addr", str),
    "--master-port": ("cluster.master_port", whole_number),
    "--interface": ("cluster.interface", str),
    "--timeout": ("cluster.timeout", number),
    "--join-timeout": ("cluster.join_timeout", number),
}
SEQUENTIAL_FLAGS: Flags = {"--num-threads": ("hardware.num_threads", number_or_auto)}


def config_file(text: str) -> Path:
    """A path; `config/cartpole.yaml` is the shipped file also where no checkout is."""
    path, shipped = Path(text), CONFIG / Path(text).name
    return shipped if path.parent == Path("config") and not path.exists() and shipped.is_file() else path


# Groups of --help, in their order; a setting's flag is in the group of its section.
GROUPS = ("budget", "environment", "algorithm", "workers and nodes", "output", "advanced")
SECTION_GROUPS = {
    "env": "environment",
    "training": "algorithm",
    "curiosity": "algorithm",
    "recurrence": "algorithm",
    "parallel": "workers and nodes",
    "hardware": "workers and nodes",
    "cluster": "workers and nodes",
}
METAVARS: dict[Callable[[str], Any], str] = {
    hours: "TIME",
    whole_number: "N",
    number: "X",
    number_or_auto: "N|auto",
    str: "NAME",
}


def build_parser(description: str, flags: Flags, examples: Sequence[str]) -> Parser:
    parser = Parser(
        description=f"{description}\nA shipped configuration for the environment replaces the defaults below;"
        " --print-config shows the result.",
        examples=examples,
        quiet=False,
    )
    groups = {name: parser.group(name) for name in GROUPS}
    for flag, (key, converter) in flags.items():
        section, _, name = key.partition(".")
        group = "budget" if name in STOP_CONDITIONS else SECTION_GROUPS[section]
        groups[group].add_argument(
            flag,
            dest=key,
            type=converter,
            default=argparse.SUPPRESS,
            metavar=METAVARS[converter],
            help=flag_help(key),
        )
    _add_other_flags(groups)
    return parser


def flag_help(key: str) -> str:
    """The first sentence of the description of a key, and its default."""
    section, _, name = key.partition(".")
    field = Settings.model_fields[section].annotation.model_fields[name]  # type: ignore[union-attr]
    text = field.description.partition(". ")[0].rstrip(".")
    if not text.partition(" ")[0].endswith(":"):
        text = text[0].lower() + text[1:]
    default = shown_default(field)
    shown = text if default == "none" else f"{text} (default: {default})"
    return shown.replace("`", "").replace("%", "%%")


def _add_other_flags(groups: dict[str, Any]) -> None:
    """Those that are no settings."""
    budget, output = groups["budget"].add_argument, groups["output"].add_argument
    advanced = groups["advanced"].add_argument
    budget("--resume", type=named_run, metavar="RUN",
        help="continue a run, bit for bit: its directory, or its name in runs/")  # fmt: skip
    output("--output-dir", type=Path, metavar="DIR",
        help="where to write the run (default: the next free runs/<kind>-N)")  # fmt: skip
    output("--quiet", action="store_true", help="print only warnings and errors")
    output("--verbose", action="store_true",
        help="print also how the work is divided and why, KL, entropy and memory")  # fmt: skip
    output("--trace", type=Path, nargs="?", const=Path(), metavar="FILE",
        help="write every phase and wait for ui.perfetto.dev (default: trace-N.json in the run"
        " directory)")  # fmt: skip
    advanced("--config", type=config_file, metavar="FILE",
        help="YAML settings (default: the shipped ones for the environment)")  # fmt: skip
    advanced("--set", action="append", default=[], metavar="KEY=VALUE",
        help="any other setting, such as training.gamma=0.99 or env.kwargs.x=1")  # fmt: skip
    advanced("--print-config", action="store_true", help="print the resolved settings as YAML and stop")
    advanced("--trust-checkpoint", action="store_true",
        help="resume environment states that another user wrote")  # fmt: skip
    advanced("--requeue", action="store_true",
        help="when preempted, ask SLURM to start this job again; then continue what --output-dir"
        " holds")  # fmt: skip


def flag_values(arguments: argparse.Namespace) -> dict[str, Any]:
    values = {key: value for key, value in vars(arguments).items() if "." in key}
    if isinstance(values.get("training.duration"), UnitlessHours):
        values["training.duration"] = float(values["training.duration"])
    for item in arguments.set:
        key, equals, text = item.partition("=")
        if not equals or "." not in key:
            raise InputError(
                f"--set {shortened(item)}: expected section.key=value, such as training.gamma=0.99"
            )
        values[key] = parse_value(text, f"--set {shortened(item)}")
    return values


def with_flag(message: str, parser: Parser, arguments: argparse.Namespace) -> str:
    """An error about a setting begins with its key; where a flag gave the value, with the flag."""
    key, _, rest = message.partition(":")
    if key not in vars(arguments):
        return message
    flag = next(action.option_strings[0] for action in parser._actions if action.dest == key)
    return f"{flag}:{rest}"


def shipped_config(env_id: Any, kind: str, algorithm: str = "ppo") -> Path | None:
    """The shipped configuration for an environment and an algorithm, if there is one."""
    if not isinstance(env_id, str | None):
        return None  # the validation that follows reports it
    env_id = env_id or EnvSettings().id
    path = CONFIG / family_of(env_id).config_name(env_id, kind, algorithm)
    return path if path.name in os.listdir(CONFIG) else None


def settings_from(arguments: argparse.Namespace, kind: str, report: Callable[[str], None]) -> Settings:
    flags = flag_values(arguments)
    given, base, file = flags, dict[str, Any](), arguments.config
    if kind == "cluster":
        flags = settings_from_engine(os.environ) | flags
    if arguments.resume is not None:
        base = _saved_settings(arguments)
    if not base and file is None:
        env_id, algorithm = flags.get("env.id"), flags.get("training.algorithm", "ppo")
        file = shipped_config(env_id, kind, algorithm)
        if file is None and algorithm == "ppo":
            file = _config_for_observations(flags)
        is_shown = arguments.verbose and not arguments.print_config
        if file is not None and is_shown and (env_id is not None or algorithm != "ppo"):
            print(f"using {file.relative_to(CONFIG.parent)} for {env_id or algorithm}")
    settings = load_settings(file=file, flags=flags, base=base)
    if "cluster.master_addr" in given and "cluster.nnodes" not in flags and settings.cluster.nnodes == 1:
        raise InputError("cluster.master_addr: is for several nodes; give their number with --nnodes")
    _check_effect(given, settings)
    is_shipped = file is not None and file.resolve().parent == CONFIG.resolve()
    settings = with_budgets(
        settings, given, is_first=arguments.resume is None, is_shipped=is_shipped, report=report
    )
    duration = vars(arguments).get("training.duration")
    if isinstance(duration, UnitlessHours):
        report(f"--duration {duration:g} means {duration:g} hours; minutes are {duration:g}m")
    return settings


def _config_for_observations(flags: dict[str, Any]) -> Path | None:
    """For an environment without settings of its own: those for vectors, if it has no images."""
    from parallel_ppo.envs.families import spaces_of
    from parallel_ppo.envs.spaces import observation_reader

    env = read_settings(file=None, flags=flags).env
    if family_of(env.id).HAS_LEVELS:
        return None
    env = env.model_copy(update={"id": canonical(env.id)})
    reader = observation_reader(spaces_of(env)[0], env.id)
    return CONFIG / VECTORS if reader.dtype == "float32" else None


def _check_effect(given: dict[str, Any], settings: Settings) -> None:
    """A key of a section that is off has no effect, and was probably meant for another section."""
    others = list(TrainingSettings.model_fields)
    for key in given:
        section, _, name = key.partition(".")
        if section == "curiosity" and name != "kind" and not settings.curiosity.is_curious:
            raise InputError(
                f"{key}: has no effect without curiosity.kind=rnd, icm or ngu{nearest(name, others, hint_only=True)}"
            )
        if section == "recurrence" and name != "kind" and not settings.recurrence.is_recurrent:
            raise InputError(f"{key}: has no effect without --recurrent gru or lstm; remove it")


def _saved_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    root = arguments.resume
    if not root.is_dir():
        if _follows(arguments):
            return {}
        raise InputError(f"--resume {root}: no such directory; expected the directory of an earlier run")
    if not (root / "config.yaml").exists():
        root = arguments.resume = run_of(root)
        if not (root / "config.yaml").exists():
            raise InputError(f"--resume {root}: holds no run; expected the directory of an earlier run")
    from parallel_ppo.training.origin import saved_settings  # imports NumPy: see `_execute` in train.py

    saved_settings(root, trust=arguments.trust_checkpoint)  # before anything that they name is imported
    saved = read_yaml(root / "config.yaml")
    check_sections(saved, str(root / "config.yaml"))
    return saved


def _follows(arguments: argparse.Namespace) -> bool:
    """A node that does not lead needs no run directory: it receives the state, and its settings are
    compared.
    """
    rank, engine = getattr(arguments, "node_rank", None), find_engine(os.environ)
    return bool(rank if rank is not None or engine is None else engine.rank)
