"""The networks that the kernels know, in plain torch: what benchmarks and tests compare them with."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def plain_trunk(network: str, observation: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """In the parameters' own precision, and torch at its best: activations in place where autograd allows."""
    x = observation.permute(0, 3, 1, 2).to(parameters[0].dtype).div_(255)
    remaining = iter(parameters)

    def convolution(x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        return functional.conv2d(x, next(remaining), next(remaining), stride, padding)

    if network == "small_image":
        pixels = x.permute(0, 2, 3, 1)
        is_kind = (pixels * 255).round().unsqueeze(-1) == torch.arange(16)
        x = functional.linear(is_kind.flatten(3).to(x.dtype), next(remaining), next(remaining))
        x = torch.relu_(x + functional.linear(pixels, next(remaining))).permute(0, 3, 1, 2)
        for number in range((len(parameters) - 5) // 2):
            x = torch.relu_(convolution(x, stride=2 if number else 1))
        x = x.permute(0, 2, 3, 1)
    elif network == "nature":
        for stride in (4, 2, 1):
            x = torch.relu_(convolution(x, stride, padding=0))
        x = x.permute(0, 2, 3, 1)
    else:
        for _ in range(3):
            x = functional.max_pool2d(convolution(x), kernel_size=3, stride=2, padding=1)
            for _ in range(2):
                x = convolution(torch.relu_(convolution(torch.relu(x)))).add_(x)
        x = torch.relu_(x)
        x = x.mean((2, 3)) if network == "impoola" else x
    return torch.relu_(functional.linear(x.flatten(1), next(remaining), next(remaining)))


def draw_parameters(shapes: Sequence[tuple[int, ...]], generator: torch.Generator) -> list[Tensor]:
    """On the scale of torch's default."""
    return [
        (torch.rand(shape, generator=generator) * 2 - 1)
        * (torch.Size(shape[1:]).numel() ** -0.5 if len(shape) > 1 else 0.1)
        for shape in shapes
    ]
