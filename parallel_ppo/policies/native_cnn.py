"""A policy for images on our own kernels."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from parallel_ppo.kernels.native import NativeHeads, NativeTrunk
from parallel_ppo.policies import heads
from parallel_ppo.policies.head_layers import head_tensors
from parallel_ppo.policies.network import Acted, Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class NativeViews:
    """The gradients of a microbatch."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        self.heads = head_tensors(named)
        self.log_std = named.get("log_std")
        self.trunk = [view for name, view in named.items() if name.startswith("trunk.")]


class Kept(NamedTuple):
    observation: Tensor
    features: Tensor
    activations: Tensor


class NativeCnn:
    takes_loss_gradient = True

    def __init__(self, policy: Policy, parameters: Tensor, network: str, factor: float) -> None:
        self.policy = policy
        self.native = NativeTrunk(network, policy.spec.observation_shape, factor=factor)
        named = views(policy, parameters)
        self.is_categorical = policy.spec.action.kind == "categorical"
        sizes = policy.spec.action.sizes if self.is_categorical else ()
        self.heads, self.log_std = NativeHeads(head_tensors(named), sizes), named.get("log_std")
        self.trunk = list(policy.trunk.parameters())
        self.step: tuple[int, ...] | None = None  # the step whose weights are packed; None: inference
        self.kept: Kept | None = None

    def begin_inference(self) -> None:
        self.native.load(self.trunk)
        self.step = None

    def begin_step(self, step: tuple[int, ...]) -> None:
        """Packs the weights once for all microbatches of a step."""
        if step != self.step:
            self.native.load(self.trunk, training=True)
            self.step = step

    def act(self, observation: Tensor, noise: np.ndarray) -> Acted:
        features = self.native.features(observation)
        if self.is_categorical:
            return Acted(*self.heads.act(features, noise))
        return heads.acted(self.policy.spec.action, self.outputs(features), noise)

    def infer(self, observation: Tensor) -> Output:
        features = self.native.features(observation)
        return self.outputs(features)

    def outputs(self, features: Tensor) -> Output:
        action, values = self.heads.forward(features)
        return Output(action, self.log_std, values)

    def forward(self, observation: Tensor) -> Output:
        features, activations = self.native.forward(observation)
        self.kept = Kept(observation, features, activations)
        return self.outputs(features)

    def backward(self, gradient: OutputGradient, into: NativeViews) -> None:
        assert self.kept is not None, "forward comes first"
        by_action, by_values = gradient.action.contiguous(), gradient.values.contiguous()
        by_features = self.heads.backward(self.kept.features, by_action, by_values, into.heads)
        if into.log_std is not None:
            assert gradient.log_std is not None
            into.log_std.copy_(gradient.log_std)
        self.native.backward(*self.kept, by_features, into.trunk)
        self.kept = None

    def gradient_views(self, flat: Tensor) -> NativeViews:
        return NativeViews(self.policy, flat)
