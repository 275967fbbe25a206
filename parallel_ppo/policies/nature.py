"""The CNN of the Nature DQN paper: three convolutions and 512 features."""

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 512


class Nature(nn.Module):
    """Without gradients, `forget` must have been called since the parameters changed: weights are laid
    out once, not in every call.
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 8, 4)
        self.second = nn.Conv2d(32, 64, 4, 2)
        self.third = nn.Conv2d(64, 64, 3, 1)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.project = nn.Linear(height * width * 64, FEATURES)
        self.num_features = FEATURES
        self.packed: dict[tuple[nn.Conv2d, int], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        convolve = self._packed if self._can_pack() else self._plain
        for layer in (self.first, self.second, self.third):
            x = convolve(layer, x)
        return functional.relu(self.project(x.permute(0, 2, 3, 1).flatten(1)), inplace=True)

    def forget(self) -> None:
        """The parameters have changed."""
        self.packed.clear()

    def _can_pack(self) -> bool:
        return not torch.is_grad_enabled() and torch.backends.mkldnn.is_available()

    def _plain(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return functional.relu(layer(x), inplace=True)

    def _packed(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """oneDNN's convolution with its ReLU, on weights in the layout that it wants for this batch size."""
        where = [[0, 0], list(layer.stride), [1, 1], 1]  # padding, stride, dilation, groups
        weight = self.packed.get((layer, len(x)))
        if weight is None:
            weight = torch.ops.mkldnn._reorder_convolution_weight(
                layer.weight.detach(), *where, list(x.shape)
            )
            self.packed[layer, len(x)] = weight
        return torch.ops.mkldnn._convolution_pointwise(x, weight, layer.bias, *where, "relu", [], "")
