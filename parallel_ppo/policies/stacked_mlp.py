"""The two MLPs of a vector policy as one batched network, with its backward pass written out.

Small networks spend their time in calls, so the policy and value network are computed as one batch of two. The
weights are views of the flat parameter vector. B samples; the leading 2 is policy and value.
"""

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.policies import heads
from parallel_ppo.policies.head_layers import HeadLayers
from parallel_ppo.policies.network import Acted, Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class StackedViews:
    """The layers of both networks in a flat vector of parameters or of gradients."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        names = [name[len("trunk.") :] for name in named if name.startswith("trunk.") and "weight" in name]
        self.weights = [_stacked(named, flat, name) for name in names]  # [2, out, in]
        biases = [_stacked(named, flat, name.replace("weight", "bias")) for name in names]
        self.biases = [bias.unsqueeze(1) for bias in biases]  # [2, 1, out]
        self.heads = HeadLayers(policy, flat)


def _stacked(named: dict[str, Tensor], flat: Tensor, name: str) -> Tensor:
    """Both networks have the same layers, so one stride separates each parameter from its counterpart."""
    first, second = named[f"trunk.{name}"], named[f"value_trunk.{name}"]
    between = second.storage_offset() - first.storage_offset()
    return flat.as_strided((2, *first.shape), (between, *first.stride()), first.storage_offset())


class StackedMlp:
    takes_loss_gradient = True

    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        assert policy.value_trunk is not None
        self.policy = policy
        self.at = StackedViews(policy, parameters)
        self.is_relu = policy.trunk.is_relu
        self.transposed = [weight.transpose(1, 2) for weight in self.at.weights]
        self.layers: list[Tensor] = []  # the last `forward`

    def begin_inference(self) -> None:
        pass

    def begin_step(self, step: tuple[int, ...]) -> None:
        pass

    def act(self, observation: Tensor, noise: np.ndarray) -> Acted:
        return heads.acted(self.policy.spec.action, self.infer(observation), noise)

    def infer(self, observation: Tensor) -> Output:
        return self.at.heads.outputs(*self._hidden(observation)[-1].unbind())

    def forward(self, observation: Tensor) -> Output:
        self.layers = self._hidden(observation)
        return self.at.heads.outputs(*self.layers[-1].unbind())

    def _hidden(self, observation: Tensor) -> list[Tensor]:
        """The input and the output of every hidden layer, each [2, B, ...]."""
        layers = [observation.expand(2, *observation.shape)]
        for weight, bias in zip(self.transposed, self.at.biases, strict=True):
            units = torch.baddbmm(bias, layers[-1], weight)
            layers.append(units.relu_() if self.is_relu else units.tanh_())
        return layers

    def backward(self, gradient: OutputGradient, into: StackedViews) -> None:
        layers, heads_at = self.layers, self.at.heads
        into.heads.write_gradients(gradient, *layers[-1].unbind())
        slope = torch.empty_like(layers[-1])
        if self.transposed:
            torch.mm(gradient.action, heads_at.action_weight, out=slope[0])
            heads_at.value_slope(gradient, out=slope[1])
        for index in range(len(self.transposed) - 1, -1, -1):
            slope = self._through_activation(slope, layers[index + 1])
            torch.bmm(slope.transpose(1, 2), layers[index], out=into.weights[index])
            torch.sum(slope, 1, keepdim=True, out=into.biases[index])
            if index:
                slope = torch.bmm(slope, self.at.weights[index])

    def _through_activation(self, slope: Tensor, units: Tensor) -> Tensor:
        if self.is_relu:
            return torch.ops.aten.threshold_backward(slope, units, 0)
        return torch.ops.aten.tanh_backward(slope, units)

    def gradient_views(self, flat: Tensor) -> StackedViews:
        return StackedViews(self.policy, flat)
