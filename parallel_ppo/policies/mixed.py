"""A trunk for each part of an observation that mixes vectors and images; their features are put side by
side.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from parallel_ppo.policies.mlp import Mlp


class Mixed(nn.Module):
    def __init__(self, make: Callable[..., Any], images: list[tuple[int, ...]], vector: Mlp | None) -> None:
        """`make` gives the trunk of one image."""
        super().__init__()
        trunks = [make(*shape) for shape in images]
        self.vector = vector
        self.images = nn.ModuleList(trunks)
        self.num_features = sum(trunk.num_features for trunk in trunks)
        self.num_features += 0 if vector is None else vector.num_features

    def forward(self, parts: list[Tensor]) -> Tensor:
        """The parts in the order of `EnvSpec.parts`: the vector, if there is one, then the images."""
        features = [] if self.vector is None else [self.vector(parts[0])]
        images = parts[len(features) :]
        features += [trunk(image) for trunk, image in zip(self.images, images, strict=True)]
        return torch.cat(features, 1)
