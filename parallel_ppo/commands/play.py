"""`play.py`: watch a policy. Records episodes as MP4 and GIF."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from parallel_ppo.commands.train import Parser
from parallel_ppo.evaluation.filming import check_camera, record
from parallel_ppo.evaluation.loaded_policy import (
    add_policy_flags,
    chosen_levels,
    guarded,
    load_subject,
    output_file,
    positive,
)
from parallel_ppo.exits import ExitCode, InputError

MAX_TILES = 64


def grid_size(text: str) -> tuple[int, int]:
    columns, _, rows = text.lower().partition("x")
    if not (columns.isdecimal() and rows.isdecimal()) or not 1 <= int(columns) * int(rows) <= MAX_TILES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not columns x rows, such as 3x2 (at most {MAX_TILES} tiles)"
        )
    return int(columns), int(rows)


def build_parser() -> Parser:
    parser = Parser(
        description="Record episodes of a trained policy: Procgen at 512 x 512 a tile, Gymnasium as it renders.",
        epilog="example: play.py --checkpoint runs/parallel-1 --grid 2x2 --levels test",
        allow_abbrev=False,
    )
    add_policy_flags(parser)
    parser.add_argument("--grid", type=grid_size, default=(1, 1), metavar="CxR", help="tiles side by side, each its own level (default: 1x1)")  # fmt: skip
    parser.add_argument("--num-episodes", type=positive, metavar="N", help="in total, shared evenly by the tiles (default: one each)")  # fmt: skip
    parser.add_argument("--levels", default="train", metavar="PART", help="train or test: levels of training, or all others (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--max-steps",
        type=positive,
        default=2000,
        metavar="N",
        help="cut longer episodes (default: %(default)s)",
    )
    parser.add_argument("--fps", type=positive, metavar="N", help="pictures a second (default: the environment's own, 15 for Procgen)")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="NAME", help="NAME.mp4 or NAME.gif, or a name without ending for both (default: play in the run directory)")  # fmt: skip
    return parser


def play_episodes(argv: Sequence[str] | None = None) -> int:
    return guarded(_play, argv)


def _play(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    tiles = arguments.grid[0] * arguments.grid[1]
    episodes = arguments.num_episodes or tiles
    if episodes % tiles:
        raise InputError(
            f"--num-episodes {episodes}: cannot be shared evenly by {tiles} tiles; nearest that can: {max(1, round(episodes / tiles)) * tiles}"
        )
    subject = load_subject(arguments, num_episodes=episodes, max_steps=arguments.max_steps)
    parts = chosen_levels(arguments.levels, subject.settings.env)
    if len(parts) > 1:
        raise InputError(f"--levels {arguments.levels}: one film shows one kind; give train or test")
    output = output_file(arguments.output, subject.weights.path, "play", ("", ".mp4", ".gif"))
    camera = check_camera(
        subject, parts[0], grid=arguments.grid, episodes=episodes // tiles, fps=arguments.fps
    )
    record(camera, [output] if output.suffix else output, quiet=arguments.quiet)
    return ExitCode.DONE
