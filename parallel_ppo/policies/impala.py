"""The IMPALA-CNN of the Procgen paper: three blocks of 16, 32 and 32 channels, 256 features."""

from torch import Tensor, nn
from torch.nn import functional

CHANNELS = (16, 32, 32)
FEATURES = 256


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
    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(Block(before, after) for before, after in zip((channels, *CHANNELS), CHANNELS, strict=False))
        )
        for _ in CHANNELS:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.project = nn.Linear(height * width * CHANNELS[-1], FEATURES)
        self.num_features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.project(functional.relu(self.blocks(x)).flatten(1)))
