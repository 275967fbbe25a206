"""The IMPALA-CNN of the Procgen paper (three blocks of 16, 32 and 32 channels, 256 features), and Impoola."""

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
    averages = False

    def __init__(self, height: int, width: int, channels: int, factor: float = 1.0) -> None:
        """`factor` times as many channels in every block."""
        super().__init__()
        scaled = [max(1, round(factor * number)) for number in CHANNELS]
        self.blocks = nn.Sequential(
            *(Block(before, after) for before, after in zip((channels, *scaled), scaled, strict=False))
        )
        for _ in CHANNELS:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.project = nn.Linear(scaled[-1] * (1 if self.averages else height * width), FEATURES)
        self.num_features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.blocks(x))
        return functional.relu(self.project(x.mean((2, 3)) if self.averages else x.flatten(1)))


class Impoola(Impala):
    """Reads the mean of each channel of the last block: with a sixth of the parameters."""

    averages = True
