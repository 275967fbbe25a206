"""For images up to 32 x 32: grids of small integers such as MiniGrid's view, and small pictures.

An environment declares bytes either way, so both are read: every value as brightness, and those below
`NUM_KINDS` also as one of so many kinds of thing, with no order between them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_KINDS = 16
CHANNELS = 16
FEATURES = 128
LARGEST_MAP = 8  # pixels a side that are left for the last layer


class SmallImage(nn.Module):
    all_kinds: Tensor

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("all_kinds", torch.arange(float(NUM_KINDS)), persistent=False)
        self.kinds = nn.Linear(channels * NUM_KINDS, CHANNELS)
        self.brightness = nn.Linear(channels, CHANNELS, bias=False)
        layers = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)]
        while max(height, width) > LARGEST_MAP:
            layers.append(nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1))
            height, width = (height + 1) // 2, (width + 1) // 2
        self.convolutions = nn.ModuleList(layers)
        self.project = nn.Linear(height * width * CHANNELS, FEATURES)
        self.num_features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)
        is_kind = (pixels * 255).round().unsqueeze(-1) == self.all_kinds
        x = self.kinds(is_kind.flatten(3).to(x.dtype)) + self.brightness(pixels)
        x = x.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = convolution(functional.relu(x))
        return functional.relu(self.project(functional.relu(x).permute(0, 2, 3, 1).flatten(1)))
