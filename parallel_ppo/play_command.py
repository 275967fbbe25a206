"""`play.py`: watch a policy. Records episodes as MP4 and GIF; the first ones that `evaluate.py` would play with the same seed."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from parallel_ppo import video
from parallel_ppo.cli import Parser
from parallel_ppo.config import Settings
from parallel_ppo.envs import names
from parallel_ppo.envs.build import make_slice
from parallel_ppo.envs.contract import SliceEnv
from parallel_ppo.evaluate_command import (
    Subject,
    add_policy_flags,
    chosen_levels,
    guarded,
    load_subject,
    output_file,
    positive,
    progress,
)
from parallel_ppo.evaluation import SLOTS, Moment, Played, part_settings, play
from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.policies.policy import Policy, bind

PROCGEN_FPS = 15  # its own speed for people
OTHER_FPS = 30  # of environments that do not name theirs
MAX_TILES = 64


class Camera(NamedTuple):
    """A policy in environments that can be seen."""

    settings: Settings
    env: SliceEnv
    policy: Policy
    prepare: Callable[[torch.Tensor], torch.Tensor]
    columns: int
    quota: np.ndarray  # episodes of each slot
    fps: int


def check_camera(
    subject: Subject, part: str, *, grid: tuple[int, int] = (2, 2), episodes: int = 1, fps: int | None = None
) -> Camera:
    """Everything that could be wrong with rendering is found out here."""
    torch.set_num_threads(1)  # as in a worker: the same arithmetic, the same episodes
    columns, rows = grid
    num_envs = max(SLOTS, columns * rows)
    settings = part_settings(subject.settings, part, 0, num_envs)
    policy = Policy(settings, subject.spec)
    bind(policy, torch.from_numpy(subject.filled.parameters))
    mean, scale = (
        torch.from_numpy(values)
        for values in (subject.filled.observation_mean, subject.filled.observation_scale)
    )
    clip = settings.training.observation_clip
    quota = np.where(np.arange(num_envs) < columns * rows, episodes, 0)
    own_fps = _check_picture(settings)
    env = make_slice(settings, 0, num_views=columns * rows)
    return Camera(
        settings,
        env,
        policy,
        lambda rows: policy.prepare(rows, mean, scale, clip),
        columns,
        quota,
        fps or own_fps,
    )


def _check_picture(settings: Settings) -> int:
    """Its pictures a second. Tried on an environment of its own, because a reset would change the episodes."""
    if names.procgen_game(settings.env.id) is not None:
        return PROCGEN_FPS
    from parallel_ppo.envs.gymnasium import make

    problem = ""
    env = make(settings.env)
    try:
        if "rgb_array" not in env.metadata.get("render_modes", []):
            known = ", ".join(map(str, env.metadata.get("render_modes", []))) or "none"
            problem = f"it has no render mode 'rgb_array' (it has: {known})"
        else:
            env.close()
            env = make(settings.env, "rgb_array")
            env.reset(seed=0)
            picture = np.asarray(env.render())
            if picture.ndim != 3 or picture.shape[2] not in (3, 4) or picture.dtype != np.uint8:
                problem = f"its picture is {picture.dtype} of shape {picture.shape}; expected uint8, height x width x 3"
    except InputError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        env.close()
    if problem:
        raise InputError(f"{settings.env.id} cannot be rendered: {problem}")
    return int(env.metadata.get("render_fps") or OTHER_FPS)


# --- filming --------------------------------------------------------------------------------------------------------------


def film(camera: Camera, finished: list[Played]) -> Iterator[Image.Image]:
    """A picture for every step. Finished episodes are appended to `finished`."""
    moments = play(
        camera.env, camera.settings, 0, policy=camera.policy, prepare=camera.prepare, quota=camera.quota
    )
    next(moments)
    views = camera.env.views()
    tiles, levels = [video.Tile(view.picture) for view in views], [view.level_seed for view in views]
    for index, tile in enumerate(tiles):
        tile.caption = _caption(0.0, 0, levels[index])
    yield video.compose(tiles, camera.columns)
    for moment in moments:
        finished += moment.ended.values()
        _advance(tiles, levels, moment, camera.env)
        yield video.compose(tiles, camera.columns)


def _advance(tiles: list[video.Tile], levels: list[int | None], moment: Moment, env: SliceEnv) -> None:
    """An environment that ended shows its next episode already: its tile keeps the last picture, with the final return."""
    for index, (tile, view) in enumerate(zip(tiles, env.views(), strict=True)):
        if tile.is_over:
            continue
        if index in moment.ended:
            tile.is_over = not moment.playing[index]
        else:
            tile.show(view.picture)
            levels[index] = view.level_seed
        tile.caption = _caption(moment.episode_return[index], int(moment.length[index]), levels[index])


def _caption(episode_return: float, length: int, level: int | None) -> str:
    return f"return {episode_return:.4g}   step {length}" + ("" if level is None else f"   level {level}")


def record(camera: Camera, files: Path | Sequence[Path], *, quiet: bool) -> list[Played]:
    """Writes the files (`stem`.mp4 and `stem`.gif when given a name without an ending)."""
    paths = (
        [files.with_name(f"{files.name}{suffix}") for suffix in (".mp4", ".gif")]
        if isinstance(files, Path)
        else list(files)
    )
    finished: list[Played] = []
    total = int(camera.quota.sum())
    try:
        with progress("recording episodes", total, lambda: len(finished), quiet):
            frames = video.write(film(camera, finished), paths, camera.fps)
    finally:
        camera.env.close()
    if not quiet:
        returns = ", ".join(f"{episode.episode_return:g}" for episode in finished)
        print(f"returns {returns}; {frames} frames in {' and '.join(map(str, paths))}")
    return finished


# --- the command ----------------------------------------------------------------------------------------------------------


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
