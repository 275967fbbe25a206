"""The CNN of the Nature DQN paper: three convolutions and 512 features."""

from torch import Tensor, nn
from torch.nn import functional

FEATURES = 512


class Nature(nn.Module):
    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 8, 4)
        self.second = nn.Conv2d(32, 64, 4, 2)
        self.third = nn.Conv2d(64, 64, 3, 1)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.project = nn.Linear(height * width * 64, FEATURES)
        self.num_features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            x = functional.relu(layer(x))
        return functional.relu(self.project(x.permute(0, 2, 3, 1).flatten(1)))
