"""Films a policy: the first episodes that `evaluate.py` plays with the same seed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from parallel_ppo.envs.contract import SliceEnv
from parallel_ppo.envs.families import film_fps, make_slice
from parallel_ppo.evaluation import video
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy
from parallel_ppo.evaluation.policy_files import make_actor
from parallel_ppo.evaluation.progress import progress
from parallel_ppo.policies.actor import Actor
from parallel_ppo.printable import count, printable
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.playing import SLOTS, Moment, Played, level_set_settings, play


class Camera(NamedTuple):
    """A policy, and environments that render."""

    settings: Settings
    env: SliceEnv
    actor: Actor
    columns: int
    quota: np.ndarray  # episodes of each slot
    fps: int


def check_camera(
    loaded: LoadedPolicy,
    level_set: str,
    *,
    grid: tuple[int, int] = (2, 2),
    episodes: int = 1,
    fps: int | None = None,
) -> Camera:
    """Finds problems with rendering before the film starts."""
    torch.set_num_threads(1)  # as in a worker: the same arithmetic, the same episodes
    columns, rows = grid
    num_envs = max(SLOTS, columns * rows)
    settings = level_set_settings(loaded.settings, level_set, 0, num_envs)
    actor = make_actor(settings, loaded.spec, loaded.filled)
    quota = np.where(np.arange(num_envs) < columns * rows, episodes, 0)
    own_fps = film_fps(settings.env)
    env = make_slice(settings, 0, num_views=columns * rows)
    return Camera(settings, env, actor, columns, quota, fps or own_fps)


# --- filming ------------------------------------------------------------------------------------------------


def film(camera: Camera, finished: list[Played]) -> Iterator[Image.Image]:
    """A picture for every step. Finished episodes are appended to `finished`."""
    moments = play(camera.env, camera.settings, 0, actor=camera.actor, quota=camera.quota)
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
    """An environment that ended already shows its next episode, so its tile keeps the last picture."""
    for index, (tile, view) in enumerate(zip(tiles, env.views(), strict=True)):
        if tile.is_over:
            continue
        if index in moment.ended:
            tile.is_over = not moment.playing[index]
        else:
            tile.show(view.picture)
            levels[index] = view.level_seed
        tile.caption = _caption(moment.episode_return[index], int(moment.length[index]), levels[index])


def _caption(episode_return: float, length: int, level: int | None) -> list[str]:
    return [f"return {episode_return:.4g}", f"step {length}", *([] if level is None else [f"level {level}"])]


def record(camera: Camera, files: Path | Sequence[Path], *, quiet: bool) -> list[Played]:
    """Writes the files (`stem`.mp4 and `stem`.gif when given a name without an ending)."""
    paths = (
        [files.with_name(f"{files.name}{suffix}") for suffix in (".mp4", ".gif")]
        if isinstance(files, Path)
        else list(files)
    )
    finished: list[Played] = []
    total, pictures = int(camera.quota.sum()), 0

    def counted() -> Iterator[Image.Image]:
        nonlocal pictures
        for picture in film(camera, finished):
            pictures += 1
            yield picture

    def what() -> str:
        return f"recording episodes ({count(pictures, 'picture')})"

    try:
        with progress(what, total, lambda: len(finished), quiet):
            frames = video.write(counted(), paths, camera.fps)
    finally:
        camera.env.close()
    if not quiet:
        returns = ", ".join(f"{episode.episode_return:g}" for episode in finished)
        print(printable(f"returns {returns}; {frames} frames in {' and '.join(map(str, paths))}"))
    return finished
