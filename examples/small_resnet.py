"""A network of one's own: a small residual network for Procgen's pictures, trained like the ones that
come with the project.

cd examples && parallel-ppo train --env coinrun --policy small_resnet:SmallResNet
"""

from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(4, channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class SmallResNet(nn.Module):
    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=4, padding=2), Residual(16), nn.MaxPool2d(2), Residual(16),
            nn.ReLU(), nn.Flatten(), nn.Linear(16 * (height // 8) * (width // 8), 128), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
