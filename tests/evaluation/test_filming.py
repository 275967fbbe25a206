import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from parallel_ppo.commands.play import play_episodes
from parallel_ppo.evaluation import progress, video
from tests.conftest import small_settings
from tests.evaluation.weight_files import write_weights


def read(path: Path) -> tuple[tuple[int, int], list[np.ndarray]]:
    frames = imageio_ffmpeg.read_frames(str(path))
    size = next(frames)["size"]
    return size, [np.frombuffer(frame, np.uint8).reshape(size[1], size[0], 3) for frame in frames]


@pytest.mark.procgen
def test_procgen_is_filmed_as_people_see_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_weights(tmp_path / "a.safetensors", small_settings("starpilot", "nature", env__num_levels=5))
    assert play_episodes(["--checkpoint", str(file), "--max-steps", "6", "--fps", "5"]) == 0
    size, frames = read(tmp_path / "play.mp4")
    assert (
        size == (512, 512) and len(frames) == 7 + 5
    )  # the start, six steps, and one second of the last picture
    with Image.open(tmp_path / "play.gif") as gif:
        assert gif.size == (512, 512)
    assert frames[3][200:].std() > 5, "a game, not a plain color"
    caption = frames[3][:40, :200]
    assert caption.max() > 200, "white letters"
    assert "7 frames" in capsys.readouterr().out
    assert not list(tmp_path.glob(".*tmp*"))


@pytest.mark.procgen
def test_a_grid_shows_the_episodes_that_are_evaluated(tmp_path: Path) -> None:
    from parallel_ppo.evaluation import filming, loaded_policy
    from parallel_ppo.evaluation.policy_files import fill, load
    from parallel_ppo.workers import playing

    settings = small_settings("maze", "nature", evaluation__max_steps=40, evaluation__interval=1)
    loaded, _ = load(write_weights(tmp_path / "a.safetensors", settings))
    seen = loaded_policy.LoadedPolicy(loaded, settings, loaded.spec, fill(loaded, settings, loaded.spec))
    camera = filming.check_camera(seen, "train", grid=(2, 1))
    filmed: list = []
    pictures = list(filming.film(camera, filmed))
    camera.env.close()
    assert {picture.size for picture in pictures} == {(2 * 512 + video.GAP, 512)}
    expected = playing.play_slice(settings, "train", 0, 0, actor=camera.actor, num_episodes=8)
    by_slot = dict(expected)
    np.testing.assert_array_equal(sorted(filmed), sorted([by_slot[0], by_slot[1]]))


@pytest.mark.parametrize("how", [[], ["--deterministic"]], ids=["drawn", "most likely"])
def test_films_obey_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str], how: list[str]) -> None:
    """The environment raises when something forbidden is done; nine steps, two tiles, three episodes."""
    settings = small_settings("tests.envs.sample_envs:Masked-v0", env__action_masks=True)
    file = write_weights(tmp_path / "a.safetensors", settings)
    line = [str(file), *how, "--grid", "2x1", "--num-episodes", "6", "--output", str(tmp_path / "a.gif")]
    assert play_episodes(line) == 0, capsys.readouterr().err
    assert "28 frames" in capsys.readouterr().out


class Room(gymnasium.Env):
    """Ends after five steps; renders 11 x 20 pixels whose red is the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.steps = render_mode, 0

    def reset(self, seed=None, options=None):  # type: ignore[no-untyped-def]
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):  # type: ignore[no-untyped-def]
        return np.full((11, 20, 3), 40 * self.steps, np.uint8)


class DarkRoom(Room):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


@pytest.fixture
def rooms() -> None:
    for name, entry in (("Room-v0", Room), ("DarkRoom-v0", DarkRoom)):
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry)


@pytest.mark.usefixtures("rooms")
def test_gymnasium_episodes_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_weights(tmp_path / "a.safetensors", small_settings("Room-v0"))
    output = tmp_path / "new" / "film.mp4"
    assert play_episodes(["--checkpoint", str(file), "--num-episodes", "2", "--output", str(output)]) == 0
    size, frames = read(output)
    assert size == (480, 264) and len(frames) == 11 + 10  # 24 times as large, and even
    levels = [int(frame[200:, 200:].mean()) for frame in frames]
    np.testing.assert_allclose(levels[:10], [0, 40, 80, 120, 160, 160, 40, 80, 120, 160], atol=4)
    assert levels[10] < 90, "an episode that is over is dimmed"
    assert "returns 5, 5" in capsys.readouterr().out and not output.with_suffix(".gif").exists()


@pytest.mark.usefixtures("rooms")
def test_an_environment_that_cannot_be_rendered_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_weights(tmp_path / "a.safetensors", small_settings("DarkRoom-v0")))
    assert play_episodes(["--checkpoint", file]) == 2
    error = capsys.readouterr().err
    assert "DarkRoom-v0 cannot be rendered: it has no render mode 'rgb_array' (it has: human)" in error
    assert error.count("\n") == 1


def test_a_long_gif_is_thinned_and_lasts_as_long(tmp_path: Path) -> None:
    gif = video.Gif(tmp_path / "a.gif", fps=10)
    for index in range(1000):
        gif.add(Image.new("RGB", (16, 16), (index % 256, index // 4, 0)))
    gif.finish()
    with Image.open(tmp_path / "a.gif") as written:
        assert 200 <= written.n_frames <= video.GIF_FRAMES
        assert written.n_frames * written.info["duration"] == pytest.approx(1000 * 100, rel=0.05)


def test_nothing_is_left_of_a_film_that_failed(tmp_path: Path) -> None:
    def frames():  # type: ignore[no-untyped-def]
        yield Image.new("RGB", (64, 64))
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError):
        video.write(frames(), [tmp_path / "a.mp4", tmp_path / "a.gif"], 10)
    assert list(tmp_path.iterdir()) == []


def test_tiles_have_gaps_and_captions_fit(tmp_path: Path) -> None:
    """A caption that is wider than its tile takes another line; nothing is written beside the picture."""
    for shape in ((40, 300, 3), (300, 40, 3), (64, 64, 3), (400, 600, 3)):
        tile = video.Tile(np.full(shape, 255, np.uint8))
        tile.caption = ["return -1234.5678", "step 10000", "level 2147483647"]
        image = np.asarray(tile.draw())
        assert min(image.shape[:2]) >= video.LEAST_TILE
        assert (image[:, -3:] == 255).all(), "the caption's ground ends before the edge"
    picture = np.asarray(video.compose([tile] * 4, 2))
    assert picture.shape == (2 * 400 + video.GAP, 2 * 600 + video.GAP, 3)
    assert video.GAP >= 4 and (picture[:, 600 : 600 + video.GAP] == (0x30, 0x36, 0x3D)).all()


def test_a_gif_stays_small_enough_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "GIF_BYTES", 200_000)
    noise = np.random.default_rng(0)
    gif = video.Gif(tmp_path / "a.gif", fps=10)
    for _ in range(40):
        gif.add(Image.fromarray(noise.integers(0, 256, (200, 200, 3), np.uint8)))
    gif.finish()
    assert (tmp_path / "a.gif").stat().st_size <= 200_000
    with Image.open(tmp_path / "a.gif") as written:
        assert written.n_frames * written.info["duration"] == pytest.approx(4000, rel=0.05)


def test_only_our_lines_are_printed() -> None:
    program = (
        "import os, sys, warnings; from parallel_ppo.evaluation.foreign_output import discarded\n"
        "with discarded():\n"
        "    os.write(2, b'from C'); os.write(1, b'from C'); warnings.warn('foreign')\n"
        "    type('Broken', (), {'__del__': lambda self: 1 / 0})()\n"
        "    print('ours'); print('our error', file=sys.stderr)\n"
        "print('later')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("ours\nlater\n", "our error\n")


def test_progress_is_shown_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_AFTER", 0.0)
    with progress.progress(lambda: "recording", 3, lambda: 1, quiet=False):
        time.sleep(0.2)
    assert capsys.readouterr().err == "recording: 1 of 3\n"
