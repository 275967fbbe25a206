"""The table of augmentations: what an image must be for each. Needs no torch. The arithmetic is in
`algorithms/augmentation.py`.
"""

from typing import NamedTuple


class AugmentationKind(NamedTuple):
    needs_colours: bool = False  # channels are red, green, blue, once or more often
    needs_square: bool = False


AUGMENTATION_KINDS = {
    "crop": AugmentationKind(),
    "color_jitter": AugmentationKind(needs_colours=True),
    "cutout": AugmentationKind(),
    "cutout_color": AugmentationKind(),
    "grayscale": AugmentationKind(needs_colours=True),
    "flip": AugmentationKind(),
    "rotate": AugmentationKind(needs_square=True),
    "random_conv": AugmentationKind(),
}


def checked_augmentation(name: str) -> str:
    if name not in ("none", *AUGMENTATION_KINDS):
        raise ValueError(f"augmentation: expected none, {', '.join(AUGMENTATION_KINDS)}")
    return name
