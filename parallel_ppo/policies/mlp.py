"""Separate tanh networks for policy and value: what small vector observations like best."""

from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, num_inputs: int, hidden_sizes: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((num_inputs, *hidden_sizes), hidden_sizes, strict=False):
            layers += [nn.Linear(before, after), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.num_features = hidden_sizes[-1] if hidden_sizes else num_inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
