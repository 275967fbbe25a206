"""`evaluate.py`: how good is a policy, on the levels it was trained on and on others."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from parallel_ppo.arguments import Parser, guarded, number_or_auto
from parallel_ppo.commands.policy_flags import (
    EPISODE_STEPS,
    EPISODES,
    add_policy_flags,
    output_file,
    policy_from,
)
from parallel_ppo.evaluation import filming
from parallel_ppo.evaluation.evaluating import make_report, play_on_workers
from parallel_ppo.evaluation.loaded_policy import chosen_levels
from parallel_ppo.evaluation.report import table
from parallel_ppo.exits import ExitCode
from parallel_ppo.machine.descendants import watching_descendants
from parallel_ppo.machine.placement import set_thread_variables
from parallel_ppo.printable import count, printable
from parallel_ppo.storage.files import write_atomically

TABLE_WIDTH = 100


def build_parser() -> Parser:
    parser = Parser(
        description=(
            "Play episodes with a trained policy and report returns, lengths and successes. The result"
            " depends on\nthe policy, the environment, --seed and --deterministic; not on --num-workers."
        ),
        examples=(
            "evaluate.py runs/parallel-1 --num-episodes 100",
            "evaluate.py runs/parallel-1/checkpoints/best --deterministic --render",
            "evaluate.py runs/few-levels --levels train,test      # a run with --num-levels",
        ),
    )
    add_policy_flags(parser)
    add = parser.add_argument
    add("--num-episodes", type=EPISODES, default=100, metavar="N", help="for each of --levels (default: 100)")
    levels = "train (default), test (unseen levels), or train,test for both and the gap"
    add("--levels", default="train", metavar="PARTS", help=levels)
    seen = "test: count levels whose first frame is that of a training level, as published scores do"
    add("--include-seen-frames", action="store_true", help=seen)
    cut = "cut longer episodes and count them as unfinished (default: %(default)s)"
    add("--max-steps", type=EPISODE_STEPS, default=100_000, metavar="N", help=cut)
    add(
        "--num-workers",
        type=number_or_auto,
        default="auto",
        metavar="N|auto",
        help="processes (default: auto)",
    )
    add("--render", action="store_true", help="also film the first four episodes, beside the JSON")
    where = "where to write the JSON (default: evaluation.json in the run directory, or beside the weights)"
    add("--output", type=Path, metavar="FILE", help=where)
    return parser


def evaluate(argv: Sequence[str] | None = None) -> int:
    with watching_descendants():
        return guarded(_evaluate, argv)


def _evaluate(argv: Sequence[str] | None) -> int:
    set_thread_variables()
    arguments = build_parser().parse_args(argv)
    policy = policy_from(arguments, num_episodes=arguments.num_episodes, max_steps=arguments.max_steps)
    level_sets = chosen_levels(arguments.levels, policy.settings.env)
    output = output_file(arguments, policy, "evaluation.json", (".json",))
    if arguments.render:
        camera = filming.check_camera(policy, level_sets[0])
    episodes = play_on_workers(policy, level_sets, arguments.num_workers, arguments.quiet)
    include_seen = arguments.include_seen_frames
    checkpoint = str(arguments.policy or arguments.checkpoint)
    report = make_report(policy, checkpoint, episodes, include_seen=include_seen)
    write_atomically(output, (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    if not arguments.quiet:
        console = Console(highlight=False)
        console.width = max(console.width, TABLE_WIDTH)
        each = " (each)" if len(level_sets) > 1 else ""
        how = "  deterministic" if report["deterministic"] else ""
        played = f"{count(report['num_episodes'], 'episode')}{each}  seed {report['seed']}{how}"
        console.print(Text(f"{printable(report['env_id'])}  step {report['env_steps']:,}  {played}"))
        console.print(table(report))
        print(printable(f"95 % intervals in brackets; written to {output}"))
    if arguments.render:
        filming.record(camera, output.with_suffix(""), quiet=arguments.quiet)
    return ExitCode.DONE
