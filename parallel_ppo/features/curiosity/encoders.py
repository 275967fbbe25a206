"""From whitened observations to features: what every predictor starts with. B samples, F features.

Large images go through the Nature CNN (by our kernels where those are used), everything else through two
layers. The features of all parts of an observation are put side by side.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.curiosity.whitening import is_native, parts_of
from parallel_ppo.kernels.native import NativeLinear, NativeTrunk, row_sums
from parallel_ppo.keyed import generator
from parallel_ppo.policies.parameters import orthogonal, views
from parallel_ppo.policies.trunks import Nature
from parallel_ppo.settings.kinds import NETWORKS
from parallel_ppo.settings.schema import Settings


def layers(num_inputs: int, *sizes: int, native: bool) -> nn.Sequential:
    """Linear layers with a ReLU after each but the last; `native`: on our kernels."""
    found: list[nn.Module] = []
    for number, (before, after) in enumerate(zip((num_inputs, *sizes), sizes, strict=False), start=1):
        relu = number < len(sizes)
        if native:
            found.append(NativeLinear(before, after, relu=relu))
        else:
            found += [nn.Linear(before, after), *([nn.ReLU()] if relu else [])]
    return nn.Sequential(*found)


def draw(module: nn.Module, flat: Tensor, seed: int, purpose: str) -> None:
    """Initial weights into a flat vector: orthogonal, with the gain of a ReLU; biases are 0."""
    flat.zero_()
    for index, (name, view) in enumerate(views(module, flat).items()):
        if name.endswith("weight"):
            draws = generator(seed, purpose, index)
            view.copy_(torch.from_numpy(orthogonal(tuple(view.shape), math.sqrt(2), draws)))


class Encoder(nn.Module):
    """`begin_inference` or `begin_step` comes first, whenever the parameters may have changed."""

    def __init__(self, settings: Settings, spec: EnvSpec, *, last_frame: bool = False) -> None:
        """With `last_frame`, only the newest of the frames stacked in an image's channels is read."""
        super().__init__()
        trunks: list[Any] = []
        self.channels: list[int | None] = []  # of an image, from the end; None: a vector
        for part in parts_of(spec):
            shape, channels = part.shape, None
            if part.is_image:
                channels = frame_channels(settings, shape[2]) if last_frame else shape[2]
                shape = (*shape[:2], channels)
            self.channels.append(channels)
            if part.is_image and min(shape[:2]) >= NETWORKS["nature"].smallest_image:
                native = is_native(settings, spec)
                trunks.append(NativeNature(shape, settings) if native else FloatNature(*shape))
            else:
                trunks.append(Flat(math.prod(shape), settings))
        self.trunks = nn.ModuleList(trunks)
        self.num_features = sum(trunk.num_features for trunk in trunks)

    def begin_inference(self) -> None:
        for trunk in self.trunks:
            trunk.begin_inference()  # type: ignore[operator]

    def begin_step(self, step: tuple[int, ...]) -> None:
        for trunk in self.trunks:
            trunk.begin_step(step)  # type: ignore[operator]

    def forward(self, parts: list[Tensor]) -> Tensor:
        found = []
        for trunk, channels, part in zip(self.trunks, self.channels, parts, strict=True):
            found.append(trunk(part if channels is None else part[..., part.shape[-1] - channels :]))
        return torch.cat(found, 1) if len(found) > 1 else found[0]


def frame_channels(settings: Settings, channels: int) -> int:
    """Channels of one frame: multiples of three are colors, anything else is stacked grey."""
    chosen = settings.curiosity.frame_channels
    return min(chosen, channels) if chosen is not None else 3 if channels % 3 == 0 else 1


class Flat(nn.Module):
    """Vectors, and images too small for convolutions of this size."""

    def __init__(self, num_inputs: int, settings: Settings) -> None:
        super().__init__()
        self.num_features = size = settings.curiosity.hidden_size
        self.hidden = layers(num_inputs, size, size, native=settings.training.kernels == "native")

    def begin_inference(self) -> None:
        pass

    def begin_step(self, step: tuple[int, ...]) -> None:
        pass

    def forward(self, part: Tensor) -> Tensor:
        return torch.relu(self.hidden(part.reshape(len(part), -1)))


class FloatNature(Nature):
    def begin_inference(self) -> None:
        self.forget()

    def begin_step(self, step: tuple[int, ...]) -> None:
        pass

    def forward(self, part: Tensor) -> Tensor:
        return super().forward(part.permute(0, 3, 1, 2))


class NativeNature(Nature):
    """Reads bytes that encode whitened values: the first layer is rescaled before the kernels get it."""

    def __init__(self, shape: tuple[int, ...], settings: Settings) -> None:
        super().__init__(*shape)
        self.clip = settings.curiosity.observation_clip
        self.shape = shape
        self.step: tuple[int, ...] | None = None

    @functools.cached_property
    def native(self) -> NativeTrunk:
        return NativeTrunk("nature", self.shape)

    def folded(self) -> list[Tensor]:
        """Parameters for bytes scaled to [0, 1], of which the values are 2 clip x - clip."""
        weight, bias, *rest = self.parameters()
        return [weight * (2 * self.clip), bias - self.clip * row_sums(weight), *rest]

    def begin_inference(self) -> None:
        self.step = None
        self.native.load([parameter.detach() for parameter in self.folded()])

    def begin_step(self, step: tuple[int, ...]) -> None:
        if step != self.step:
            self.step = step
            self.native.load([parameter.detach() for parameter in self.folded()], training=True)

    def forward(self, part: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _NativeFeatures.apply(self.native, part.contiguous(), *self.folded())
        return self.native.features(part.contiguous())


class _NativeFeatures(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, native: NativeTrunk, observation: Tensor, *parameters: Tensor) -> Tensor:
        features, activations = native.forward(observation)
        context.kept = native, observation, features, activations
        return features.clone()  # a result that its own history refers to would never be freed

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        native, observation, features, activations = context.kept
        gradients: Sequence[Tensor] = [torch.empty(shape) for shape in native.shapes]
        native.backward(observation, features, activations, slopes[0].contiguous(), gradients)
        return None, None, *gradients
