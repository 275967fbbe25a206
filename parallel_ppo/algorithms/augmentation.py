"""Images that show the same in another way, for DrAC (`drac.py`). B images, H rows, W columns, C channels.

Each augmentation is a pure function of bytes [B, H, W, C] and a keyed generator; every image has draws of
its own. Bytes come out, because that is what networks read. Sizes are given for 64 pixels and grow with the
image.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from parallel_ppo.envs.contract import EnvSpec

Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]
MARGIN = 12 / 64  # of an image's side that a crop may move it by
SMALLEST_BOX, LARGEST_BOX = 7 / 64, 22 / 64
JITTER = 0.4  # brightness, contrast and saturation are multiplied by 1 +- this
MIDDLE = 128.0  # grey
# Luma and two color differences of red, green and blue, and back: saturation scales the differences, hue
# turns them.
TO_LUMA = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
FROM_LUMA = np.linalg.inv(TO_LUMA)


def crop(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Moved by up to `MARGIN` in both directions; the border's pixels fill what becomes visible."""
    num, height, width, _ = images.shape
    down, right = (max(1, round(MARGIN * side)) for side in (height, width))
    moved = draws.integers([-down, -right], [down + 1, right + 1], (num, 2))
    rows = np.clip(np.arange(height) + moved[:, :1], 0, height - 1)
    columns = np.clip(np.arange(width) + moved[:, 1:], 0, width - 1)
    found = np.empty_like(images)
    for index, image in enumerate(images):
        image.take(rows[index], 0).take(columns[index], 1, out=found[index])
    return found


def cutout(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """A black box at a random place."""
    return _with_boxes(images, draws, np.zeros((len(images), images.shape[3]), np.uint8))


def cutout_color(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """A box of a random color at a random place."""
    colors = draws.integers(0, 256, (len(images), images.shape[3]), np.uint8)
    return _with_boxes(images, draws, colors)


def _with_boxes(images: np.ndarray, draws: np.random.Generator, colors: np.ndarray) -> np.ndarray:
    sides = np.array(images.shape[1:3])
    smallest = np.maximum(1, np.round(SMALLEST_BOX * sides)).astype(int)
    largest = np.maximum(smallest + 1, np.round(LARGEST_BOX * sides).astype(int))
    size = draws.integers(smallest, largest, (len(images), 2))
    first = draws.integers(0, sides - size + 1)
    found = images.copy()
    for image, color, (top, left), (height, width) in zip(found, colors, first, size, strict=True):
        image[top : top + height, left : left + width] = color
    return found


def flip(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Every other image, by chance, is mirrored left to right."""
    mirrored = draws.integers(0, 2, len(images)).astype(bool)
    return np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)


def rotate(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Rotates by none to three quarter turns."""
    turns = draws.integers(0, 4, len(images)).tolist()
    return np.stack([np.rot90(image, turn) for image, turn in zip(images, turns, strict=True)])


def grayscale(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """The luma in all three colors. Nothing is drawn."""
    return _mixed(images, np.broadcast_to(TO_LUMA[0], (len(images), 3, 3)), 0.0)


def color_jitter(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Contrast around the image's own mean, then brightness, saturation and a turned hue."""
    num = len(images)
    contrast, brightness, saturation = draws.uniform(1 - JITTER, 1 + JITTER, (3, num, 1, 1))
    angle = draws.uniform(-np.pi, np.pi, num)
    turned = np.zeros((num, 3, 3))
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = np.cos(angle)
    turned[:, 2, 1] = np.sin(angle)
    turned[:, 1, 2] = -turned[:, 2, 1]
    turned[:, 1:] *= saturation
    mixing = brightness * (FROM_LUMA @ turned @ TO_LUMA)
    mean = images.reshape(num, -1, 3).mean(1)[:, :, None]
    return _mixed(images, contrast * mixing, (1 - contrast) * (mixing @ mean))


def _mixed(images: np.ndarray, mixing: np.ndarray, more: np.ndarray | float) -> np.ndarray:
    """Every pixel's colors times a matrix [B, 3, 3], plus a color [B, 3, 1], as bytes."""
    pixels = torch.from_numpy(images).reshape(len(images), -1, 3).to(torch.float32)
    found = torch.bmm(pixels, torch.from_numpy(mixing.transpose(0, 2, 1).astype(np.float32)))
    if isinstance(more, np.ndarray):
        found += torch.from_numpy(more.transpose(0, 2, 1).astype(np.float32))
    return _as_bytes(found).reshape(images.shape)


def random_conv(images: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """A 3x3 convolution with separate weights for every image, around middle grey so that it fits bytes."""
    num, height, width, channels = images.shape
    deviation = 1 / (3 * np.sqrt(channels))  # Xavier's, for as many outputs as inputs
    kernel = draws.normal(0, deviation, (num * channels, channels, 3, 3)).astype(np.float32)
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32) - MIDDLE
    padded = functional.pad(planes, (1, 1, 1, 1), "replicate").reshape(1, -1, height + 2, width + 2)
    found = functional.conv2d(padded, torch.from_numpy(kernel), groups=num) + MIDDLE
    return np.ascontiguousarray(_as_bytes(found).reshape(num, channels, height, width).transpose(0, 2, 3, 1))


def _as_bytes(values: torch.Tensor) -> np.ndarray:
    return values.round_().clamp_(0, 255).to(torch.uint8).numpy()


AUGMENTATIONS: dict[str, Augmentation] = {
    "crop": crop,
    "color_jitter": color_jitter,
    "cutout": cutout,
    "cutout_color": cutout_color,
    "grayscale": grayscale,
    "flip": flip,
    "rotate": rotate,
    "random_conv": random_conv,
}


def augmented(name: str, rows: torch.Tensor, spec: EnvSpec, draws: np.random.Generator) -> torch.Tensor:
    """Rows of the rollout with every image in them augmented; vectors are not changed."""
    change, found = AUGMENTATIONS[name], rows.numpy()
    if not spec.parts:
        return torch.from_numpy(change(found, draws))
    found = found.copy()
    for part in spec.parts:
        if part.is_image:
            image = found[:, part.offset : part.end].reshape(-1, *part.shape)
            found[:, part.offset : part.end] = change(image, draws).reshape(len(found), -1)
    return torch.from_numpy(found)
