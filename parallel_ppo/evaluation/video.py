"""Films: tiles with captions, side by side, as MP4 and GIF."""

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
GAP = 8  # pixels between tiles
GIF_FRAMES = 300
GIF_SIDE = 768
GIF_BYTES = 5_000_000  # a common limit of chats, issues and mail
HOLD_SECONDS = 1.0  # the last picture stays


class Tile:
    """One place in the picture, with its caption."""

    def __init__(self, picture: np.ndarray) -> None:
        self.scale = -(-LEAST_TILE // min(picture.shape[:2]))
        self.show(picture)
        self.caption: list[str] = []  # parts; a line holds as many as fit
        self.is_over = False

    def show(self, picture: np.ndarray) -> None:
        self.picture = picture.repeat(self.scale, axis=0).repeat(self.scale, axis=1)

    def draw(self) -> Image.Image:
        image = Image.fromarray(np.ascontiguousarray(self.picture[..., :3], np.uint8), "RGB")
        if self.is_over:
            image = Image.blend(image, Image.new("RGB", image.size, "black"), 0.5)
        side = min(image.size)
        font, margin, pen = _font(max(12, side // 22)), max(4, side // 100), ImageDraw.Draw(image, "RGBA")
        lines: list[str] = []
        for part in self.caption:
            longer = f"{lines[-1]}   {part}" if lines else part
            if lines and pen.textlength(longer, font=font) <= image.width - 3 * margin:
                lines[-1] = longer
            else:
                lines.append(part)
        text = "\n".join(lines)
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        pen.rectangle((0, 0, right - left + 3 * margin, bottom - top + 3 * margin), fill=(0, 0, 0, 150))
        pen.text((1.5 * margin - left, 1.5 * margin - top), text, font=font, fill="white")
        return image


def _font(size: int) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    try:
        return ImageFont.load_default(size)
    except (ImportError, OSError, TypeError):  # Pillow without FreeType has one bitmap font
        return ImageFont.load_default()


def compose(tiles: Sequence[Tile], columns: int) -> Image.Image:
    """Row by row; even sizes, because video codecs halve the resolution of colors."""
    images = [tile.draw() for tile in tiles]
    width, height = max(image.width for image in images), max(image.height for image in images)
    rows = -(-len(images) // columns)
    total = columns * (width + GAP) - GAP, rows * (height + GAP) - GAP
    picture = Image.new("RGB", (total[0] + total[0] % 2, total[1] + total[1] % 2), "#30363d")
    for index, image in enumerate(images):
        picture.paste(image, (index % columns * (width + GAP), index // columns * (height + GAP)))
    return picture


class Mp4:
    def __init__(self, path: Path, fps: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports pkg_resources, which warns that it is deprecated
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
                macro_block_size=2, quality=7, ffmpeg_log_level="error",
                output_params=["-movflags", "+faststart"],
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
    """Keeps at most 300 frames: beyond that, every second one is dropped and the others last twice as long.

    A file that is too large is written again in a smaller size.
    """

    def __init__(self, path: Path, fps: int) -> None:
        self.path, self.fps, self.temporary = path, fps, temporary_beside(path)
        self.frames: list[Image.Image] = []
        self.stride, self.seen = 1, 0

    def add(self, frame: Image.Image) -> None:
        if self.seen % self.stride == 0:
            self.frames.append(_indexed(frame, max(frame.size) / GIF_SIDE))
            if len(self.frames) > GIF_FRAMES:
                self._thin()
        self.seen += 1

    def _thin(self) -> None:
        self.frames, self.stride = self.frames[::2], 2 * self.stride

    def finish(self) -> None:
        while self._write() > GIF_BYTES and len(self.frames) > 1:
            factor = 1.1 * (self.temporary.stat().st_size / GIF_BYTES) ** 0.5
            if min(self.frames[0].size) / factor < LEAST_TILE and len(self.frames) > GIF_FRAMES // 4:
                self._thin()
            else:
                self.frames = [_indexed(frame.convert("RGB"), factor) for frame in self.frames]
        os.replace(self.temporary, self.path)

    def _write(self) -> int:
        first, *rest = self.frames
        delay = round(1000 * self.stride / self.fps)
        first.save(
            self.temporary, "GIF", save_all=True, append_images=rest, duration=delay, loop=0, optimize=False
        )
        return self.temporary.stat().st_size

    def abandon(self) -> None:
        self.temporary.unlink(missing_ok=True)


def _indexed(frame: Image.Image, smaller: float) -> Image.Image:
    """Smaller by a factor, if that is above 1, in 128 colors."""
    if smaller > 1:
        frame = frame.resize([max(1, int(side / smaller)) for side in frame.size], Image.Resampling.BOX)
    return frame.quantize(128, method=Image.Quantize.FASTOCTREE)


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
