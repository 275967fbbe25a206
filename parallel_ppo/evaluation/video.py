"""Pictures for people: tiles with the return written on them, side by side, as MP4 and GIF."""

import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from parallel_ppo.exits import InputError
from parallel_ppo.storage.files import temporary_beside

LEAST_TILE = 256  # pixels: smaller pictures are enlarged by a whole factor
GIF_FRAMES = 300
GIF_SIDE = 1024
HOLD_SECONDS = 1.0  # the last picture stays


class Tile:
    """One place in the picture: what it shows and what is written on it."""

    def __init__(self, picture: np.ndarray) -> None:
        self.scale = max(1, LEAST_TILE // min(picture.shape[:2]))
        self.show(picture)
        self.caption, self.is_over = "", False

    def show(self, picture: np.ndarray) -> None:
        self.picture = picture.repeat(self.scale, axis=0).repeat(self.scale, axis=1)

    def draw(self) -> Image.Image:
        image = Image.fromarray(np.ascontiguousarray(self.picture[..., :3], np.uint8), "RGB")
        if self.is_over:
            image = Image.blend(image, Image.new("RGB", image.size, "black"), 0.5)
        font = _font(max(12, image.height // 22))
        pen = ImageDraw.Draw(image, "RGBA")
        left, top, right, bottom = pen.textbbox((0, 0), self.caption, font=font)
        margin = max(4, image.height // 100)
        pen.rectangle((0, 0, right - left + 3 * margin, bottom - top + 3 * margin), fill=(0, 0, 0, 150))
        pen.text((margin - left, margin - top), self.caption, font=font, fill="white")
        return image


def _font(size: int) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    try:
        return ImageFont.load_default(size)
    except (ImportError, OSError, TypeError):  # Pillow without FreeType has one bitmap font
        return ImageFont.load_default()


def compose(tiles: Sequence[Tile], columns: int) -> Image.Image:
    """Row by row; even sizes, because video codecs halve the colours' resolution."""
    images = [tile.draw() for tile in tiles]
    width, height = max(image.width for image in images), max(image.height for image in images)
    rows = -(-len(images) // columns)
    total = (columns * width + columns * width % 2, rows * height + rows * height % 2)
    picture = Image.new("RGB", total)
    for index, image in enumerate(images):
        picture.paste(image, (index % columns * width, index // columns * height))
    return picture


class Mp4:
    def __init__(self, path: Path, fps: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports pkg_resources, which says that it is old
            import imageio_ffmpeg

        try:
            imageio_ffmpeg.get_ffmpeg_exe()
        except RuntimeError:
            raise InputError(
                f"{path}: no ffmpeg was found for MP4; install ffmpeg, or give an --output that ends in .gif"
            ) from None
        self.path, self.fps, self.temporary = path, fps, temporary_beside(path)
        self.library = imageio_ffmpeg
        self.writer: Generator[None, Any, None] | None = None

    def add(self, frame: Image.Image) -> None:
        if self.writer is None:
            self.writer = self.library.write_frames(
                str(self.temporary), frame.size, fps=self.fps, codec="libx264", pix_fmt_out="yuv420p",
                macro_block_size=2, quality=7, ffmpeg_log_level="error", output_params=["-movflags", "+faststart"],
            )  # fmt: skip
            next(self.writer)
        self.writer.send(np.asarray(frame))

    def finish(self) -> None:
        assert self.writer is not None
        self.writer.close()
        if not self.temporary.is_file() or self.temporary.stat().st_size == 0:
            raise OSError(None, "ffmpeg wrote nothing; is the disk full?", str(self.path))
        os.replace(self.temporary, self.path)

    def abandon(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.temporary.unlink(missing_ok=True)


class Gif:
    """Keeps at most 300 frames: when there are more, every second one goes, and the others stay twice as long."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path, self.fps, self.temporary = path, fps, temporary_beside(path)
        self.frames: list[Image.Image] = []
        self.stride, self.seen = 1, 0

    def add(self, frame: Image.Image) -> None:
        if self.seen % self.stride == 0:
            small = frame.copy()
            small.thumbnail((GIF_SIDE, GIF_SIDE))
            self.frames.append(small.quantize(128, method=Image.Quantize.FASTOCTREE))
            if len(self.frames) > GIF_FRAMES:
                self.frames, self.stride = self.frames[::2], 2 * self.stride
        self.seen += 1

    def finish(self) -> None:
        first, *rest = self.frames
        delay = round(1000 * self.stride / self.fps)
        first.save(self.temporary, save_all=True, append_images=rest, duration=delay, loop=0, optimize=False)
        os.replace(self.temporary, self.path)

    def abandon(self) -> None:
        self.temporary.unlink(missing_ok=True)


def write(frames: Iterator[Image.Image], files: Sequence[Path], fps: int) -> int:
    """All or nothing; returns the number of frames."""
    movies = [(Gif if file.suffix == ".gif" else Mp4)(file, fps) for file in files]
    count = 0
    try:
        for frame in frames:
            count += 1
            for movie in movies:
                movie.add(frame)
        for _ in range(round(HOLD_SECONDS * fps)):
            for movie in movies:
                movie.add(frame)
        for movie in movies:
            movie.finish()
    except BaseException:
        for movie in movies:
            movie.abandon()
        raise
    return count
