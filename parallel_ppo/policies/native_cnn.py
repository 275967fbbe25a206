"""A policy for images on our own kernels."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.kernels.native import NativeHeads, NativeTrunk
from parallel_ppo.policies import heads
from parallel_ppo.policies.head_layers import HeadLayers, value_rows
from parallel_ppo.policies.network import Acted, Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class NativeViews:
    """The gradients of a microbatch."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        self.heads = HeadLayers(policy, flat)
        self.trunk = [view for name, view in views(policy, flat).items() if name.startswith("trunk.")]


class Kept(NamedTuple):
    observation: Tensor
    features: Tensor
    activations: Tensor


class NativeCnn:
    takes_loss_gradient = True

    def __init__(self, policy: Policy, parameters: Tensor, network: str, factor: float) -> None:
        self.policy = policy
        self.native = NativeTrunk(network, policy.spec.observation_shape, factor=factor)
        self.heads = HeadLayers(policy, parameters)
        self.trunk = list(policy.trunk.parameters())
        self.step: tuple[int, ...] | None = None  # the step whose weights are packed; None: inference
        self.kept: Kept | None = None
        self.fast_heads = None
        if policy.spec.action.kind == "categorical":
            at = self.heads
            weights = at.action_weight, at.action_bias, at.value_weight, at.value_bias
            self.fast_heads = NativeHeads(weights, policy.spec.action.sizes)

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
        if self.fast_heads is not None:
            action, log_prob, value = self.fast_heads.act(features, noise)
            return Acted(action, log_prob, self.heads.with_other_values(value, features))
        return heads.acted(self.policy.spec.action, self.heads.outputs(features, features), noise)

    def infer(self, observation: Tensor) -> Output:
        features = self.native.features(observation)
        return self.heads.outputs(features, features)

    def forward(self, observation: Tensor) -> Output:
        features, activations = self.native.forward(observation)
        self.kept = Kept(observation, features, activations)
        return self.heads.outputs(features, features)

    def backward(self, gradient: OutputGradient, into: NativeViews) -> None:
        assert self.kept is not None, "forward comes first"
        features = self.kept.features
        into.heads.write_gradients(gradient, features, features)
        by_features = torch.mm(gradient.action, self.heads.action_weight)
        by_features.addmm_(value_rows(gradient).t(), self.heads.value_weight)
        self.native.backward(*self.kept, by_features, into.trunk)
        self.kept = None

    def gradient_views(self, flat: Tensor) -> NativeViews:
        return NativeViews(self.policy, flat)
