"""The networks of the stated work in plain torch, for peers that do not ship them: NCHW in, features out."""

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x))))


class Impala(nn.Module):
    """Blocks of 16, 32 and 32 channels, then 256 features."""

    num_features = 256

    def __init__(self, channels_last: bool = False) -> None:
        super().__init__()
        self.channels_last = channels_last
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(after), Residual(after)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 32, 256), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)


class Nature(nn.Module):
    num_features = 512

    def __init__(self, channels_last: bool = False) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * 4 * 64, 512), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)
