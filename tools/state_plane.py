"""Draw what a policy does over the state plane of Pendulum-v1 or MountainCar-v0, its value function, and one episode.

examples:
  python tools/state_plane.py --checkpoint runs/parallel-1                     RUN/plane.json, plane.png and plane-dark.png
  python tools/state_plane.py --checkpoint runs/parallel-1 --output swing.svg  another name, and SVG
  python play.py --checkpoint runs/parallel-1 --output swing.mp4               the same kind of episode as a video
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

from parallel_ppo.commands.train import Parser
from parallel_ppo.exits import ExitCode
from parallel_ppo.machine.placement import set_thread_variables

set_thread_variables(1)

from parallel_ppo.evaluation import loaded_policy, plane  # noqa: E402
from parallel_ppo.reports import plane_plot, theme  # noqa: E402


def build_parser() -> Parser:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    loaded_policy.add_policy_flags(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="a .png or .svg (default: plane.png in the run directory)")  # fmt: skip
    parser.add_argument("--size", type=loaded_policy.positive, default=121, metavar="N", help="points along each axis (default: %(default)s)")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    chosen = loaded_policy.load_subject(arguments)
    plane.plane_of(chosen)
    output = loaded_policy.output_file(arguments.output, chosen.weights.path, "plane.png", (".png", ".svg"))
    data = output.with_suffix(".json")
    plane.write(chosen, data, arguments.size)
    content = plane_plot.read_plane(data)
    for look in theme.THEMES:
        name = output if look is theme.LIGHT else output.with_stem(f"{output.stem}-dark")
        plane_plot.draw_plane(content, look).savefig(name, dpi=120)
        print(name)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(loaded_policy.guarded(main, sys.argv[1:]))
