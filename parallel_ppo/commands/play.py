"""`play.py`: watch a policy. Records episodes as MP4 and GIF."""

from collections.abc import Sequence
from pathlib import Path

from parallel_ppo.arguments import Parser, expecting, guarded, number_from
from parallel_ppo.commands.policy_flags import (
    EPISODE_STEPS,
    EPISODES,
    add_policy_flags,
    output_file,
    policy_from,
)
from parallel_ppo.evaluation.filming import check_camera, record
from parallel_ppo.evaluation.foreign_output import discarded
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy, chosen_levels
from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.machine.descendants import watching_descendants
from parallel_ppo.machine.placement import set_thread_variables

MAX_TILES = 64


@expecting(f"columns x rows, such as 3x2 (at most {MAX_TILES} tiles)")
def grid_size(text: str) -> tuple[int, int]:
    columns, rows = map(int, text.lower().split("x"))
    if min(columns, rows) < 1 or columns * rows > MAX_TILES:
        raise ValueError
    return columns, rows


def build_parser() -> Parser:
    parser = Parser(
        description=(
            "Film episodes of a trained policy: Procgen at 512 x 512 a tile, Gymnasium as it renders."
        ),
        examples=(
            "play.py runs/parallel-1 --grid 2x2",
            "play.py runs/few-levels --levels test --output unseen.mp4      # a run with --num-levels",
        ),
    )
    add_policy_flags(parser)
    add = parser.add_argument
    add(
        "--grid",
        type=grid_size,
        default=(1, 1),
        metavar="CxR",
        help="tiles, each its own level (default: 1x1)",
    )
    add(
        "--num-episodes", type=EPISODES, metavar="N", help="in total, shared by the tiles (default: one each)"
    )
    add("--levels", default="train", metavar="PART", help="train (default) or test (unseen levels)")
    add(
        "--max-steps",
        type=EPISODE_STEPS,
        default=2000,
        metavar="N",
        help="cut longer episodes (default: 2000)",
    )
    add(
        "--fps", type=number_from(1, 1000), metavar="N", help="default: the environment's own, 15 for Procgen"
    )
    where = "NAME.mp4, NAME.gif, or a name without an ending for both (default: play in the run directory)"
    add("--output", type=Path, metavar="NAME", help=where)
    return parser


def play_episodes(argv: Sequence[str] | None = None) -> int:
    with watching_descendants(), discarded():
        return guarded(_play, argv)


def _play(argv: Sequence[str] | None) -> int:
    set_thread_variables()
    arguments = build_parser().parse_args(argv)
    tiles = arguments.grid[0] * arguments.grid[1]
    episodes = arguments.num_episodes or tiles
    if episodes % tiles:
        nearest = max(1, round(episodes / tiles)) * tiles
        raise InputError(
            f"--num-episodes {episodes}: cannot be shared evenly by {tiles} tiles; nearest that can:"
            f" {nearest}"
        )
    policy = policy_from(arguments, num_episodes=episodes, max_steps=arguments.max_steps)
    level_set = _level_set(arguments.levels, policy)
    output = output_file(arguments, policy, "play", ("", ".mp4", ".gif"))
    camera = check_camera(
        policy, level_set, grid=arguments.grid, episodes=episodes // tiles, fps=arguments.fps
    )
    record(camera, [output] if output.suffix else output, quiet=arguments.quiet)
    return ExitCode.DONE


def _level_set(text: str, policy: LoadedPolicy) -> str:
    level_sets = chosen_levels(text, policy.settings.env)
    if len(level_sets) > 1:
        raise InputError(f"--levels {text}: one film shows one kind; give train or test")
    return level_sets[0]
