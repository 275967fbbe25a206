"""Trunks: the part of a policy between observation and features.

B samples; an image trunk is made with (height, width, channels) and reads [B, channels, height, width].
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, num_inputs: int, hidden_sizes: list[int], activation: str = "tanh") -> None:
        super().__init__()
        self.is_relu = activation == "relu"
        layers: list[nn.Module] = []
        for before, after in zip((num_inputs, *hidden_sizes), hidden_sizes, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU() if self.is_relu else nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.num_features = hidden_sizes[-1] if hidden_sizes else num_inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Mixed(nn.Module):
    """Concatenates the features of each part of an observation with a vector, images or both."""

    def __init__(self, make: Callable[..., Any], images: list[tuple[int, ...]], vector: Mlp | None) -> None:
        """`make` creates the trunk of one image."""
        super().__init__()
        trunks = [make(*shape) for shape in images]
        self.vector = vector
        self.images = nn.ModuleList(trunks)
        self.num_features = sum(trunk.num_features for trunk in trunks)
        self.num_features += 0 if vector is None else vector.num_features

    def forward(self, parts: list[Tensor]) -> Tensor:
        """`parts` are in the order of `EnvSpec.parts`: the vector, if there is one, then the images."""
        features = [] if self.vector is None else [self.vector(parts[0])]
        images = parts[len(features) :]
        features += [trunk(image) for trunk, image in zip(self.images, images, strict=True)]
        return torch.cat(features, 1)


# --- Nature (DQN): three convolutions and 512 features ------------------------------------------------------


class Nature(nn.Module):
    """Keeps weights in oneDNN's layout for inference; `forget` must be called after each change of parameters."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 8, 4)
        self.second = nn.Conv2d(32, 64, 4, 2)
        self.third = nn.Conv2d(64, 64, 3, 1)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.num_features = 512
        self.project = nn.Linear(height * width * 64, self.num_features)
        self.packed: dict[tuple[nn.Conv2d, int], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        can_pack = not torch.is_grad_enabled() and torch.backends.mkldnn.is_available()
        for layer in (self.first, self.second, self.third):
            x = self._packed(layer, x) if can_pack else functional.relu(layer(x), inplace=True)
        return functional.relu(self.project(x.permute(0, 2, 3, 1).flatten(1)), inplace=True)

    def forget(self) -> None:
        self.packed.clear()

    def _packed(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """oneDNN's convolution and ReLU, with weights in its layout for this batch size."""
        where = [[0, 0], list(layer.stride), [1, 1], 1]  # padding, stride, dilation, groups
        weight = self.packed.get((layer, len(x)))
        if weight is None:
            weight = torch.ops.mkldnn._reorder_convolution_weight(
                layer.weight.detach(), *where, list(x.shape)
            )
            self.packed[layer, len(x)] = weight
        return torch.ops.mkldnn._convolution_pointwise(x, weight, layer.bias, *where, "relu", [], "")


# --- IMPALA: the residual network of the Procgen paper, and Impoola -----------------------------------------


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x))))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.entry = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.residuals = nn.Sequential(Residual(outputs), Residual(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.residuals(functional.max_pool2d(self.entry(x), 3, 2, 1))


class Impala(nn.Module):
    averages = False

    def __init__(self, height: int, width: int, channels: int, factor: float = 1.0) -> None:
        """`factor` scales the number of channels of every block."""
        super().__init__()
        outputs = [max(1, round(factor * number)) for number in (16, 32, 32)]
        inputs = [channels, *outputs[:-1]]
        self.blocks = nn.Sequential(*map(Block, inputs, outputs))
        for _ in outputs:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.num_features = 256
        pixels = 1 if self.averages else height * width
        self.project = nn.Linear(outputs[-1] * pixels, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.blocks(x))
        return functional.relu(self.project(x.mean((2, 3)) if self.averages else x.flatten(1)))


class Impoola(Impala):
    """IMPALA with the mean of each channel after the last block, and a sixth of the parameters."""

    averages = True


# --- small images -------------------------------------------------------------------------------------------

NUM_KINDS = 16
SMALL_CHANNELS = 16
LARGEST_MAP = 8  # side of the last layer's input, in pixels


class SmallImage(nn.Module):
    """For images up to 32 x 32: grids of small integers such as MiniGrid's view, and small pictures.

    Both are bytes, so each value is read as brightness, and a value below `NUM_KINDS` also as a category.
    """

    all_kinds: Tensor

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("all_kinds", torch.arange(float(NUM_KINDS)), persistent=False)
        self.kinds = nn.Linear(channels * NUM_KINDS, SMALL_CHANNELS)
        self.brightness = nn.Linear(channels, SMALL_CHANNELS, bias=False)
        layers = [nn.Conv2d(SMALL_CHANNELS, SMALL_CHANNELS, 3, padding=1)]
        while max(height, width) > LARGEST_MAP:
            layers.append(nn.Conv2d(SMALL_CHANNELS, SMALL_CHANNELS, 3, 2, 1))
            height, width = (height + 1) // 2, (width + 1) // 2
        self.convolutions = nn.ModuleList(layers)
        self.num_features = 128
        self.project = nn.Linear(height * width * SMALL_CHANNELS, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)
        is_kind = (pixels * 255).round().unsqueeze(-1) == self.all_kinds
        x = self.kinds(is_kind.flatten(3).to(x.dtype)) + self.brightness(pixels)
        x = x.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = convolution(functional.relu(x))
        return functional.relu(self.project(functional.relu(x).permute(0, 2, 3, 1).flatten(1)))
