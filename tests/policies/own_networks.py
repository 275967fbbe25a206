"""Networks of users for the tests: one that is fine, and one for each thing that is refused."""

import random

import torch
from torch import Tensor, nn


class Fine(nn.Module):
    """Has no `num_features`, layers with constant initial weights, and its own initial weights."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, 10))
        nn.init.orthogonal_(self.layers[3].weight)
        self.scale = nn.Parameter(torch.rand(10))
        self.register_buffer("shift", torch.arange(10.0))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) + 0.01 * self.shift) * self.scale


class Around(nn.Module):
    def __init__(self, num_inputs: int, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 8), *layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Dropping(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs, nn.Dropout(0.5))


class Running(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs, nn.BatchNorm1d(8))


class MixingRows(Around):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - x.mean()


class Unseeded(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs)
        nn.init.constant_(self.layers[0].weight, random.random())


class RandomBuffer(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs)
        self.register_buffer("noise", torch.rand(3))


class Unused(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs)
        self.spare = nn.Linear(2, 2)


class Frozen(Around):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs)
        self.layers[0].bias.requires_grad_(False)


class Hidden(nn.Module):
    """Its layer is in a plain list, which torch does not search."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(num_inputs, 8)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


class Failing(nn.Module):
    def __init__(self, num_inputs: int) -> None:
        raise RuntimeError("no thanks")


class Flat(nn.Module):
    def __init__(self, num_inputs: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


NOT_A_NETWORK = 3
