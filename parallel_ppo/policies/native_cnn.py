"""A policy whose trunk runs on our own kernels, differentiated without autograd. Stands in for `Policy` in the workers, never in a file."""

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.algorithms.ppo_gradient import Batch, Weights
from parallel_ppo.kernels.native import NativeHeads
from parallel_ppo.policies import heads
from parallel_ppo.policies.policy import Policy, views
from parallel_ppo.policies.written_heads import WrittenHeads


class NativeGradient:
    """Where the gradients of a lane go."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        self.heads = WrittenHeads(policy, flat)
        self.trunk = [view for name, view in views(policy, flat).items() if name.startswith("trunk.")]


class NativeCnn:
    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        assert policy.native is not None
        self.policy, self.native = policy, policy.native
        self.heads = WrittenHeads(policy, parameters)
        self.fast_heads = None
        if policy.spec.action.kind == "categorical":
            at = self.heads
            weights = at.action_weight, at.action_bias, at.value_weight, at.value_bias
            self.fast_heads = NativeHeads(weights, policy.spec.action.sizes)

    def act(self, observation: Tensor, noise: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions, their log-probabilities and values; the policy is packed for inference."""
        features = self.native.features(observation)
        if self.fast_heads is not None:
            return self.fast_heads.act(features, noise)
        output = self.heads.outputs(features, features)
        return *heads.act(self.policy.spec.action, output.action, output.log_std, noise), output.value.numpy()

    def gradient_views(self, flat: Tensor) -> NativeGradient:
        return NativeGradient(self.policy, flat)

    @torch.no_grad()
    def differentiate(
        self, observation: Tensor, batch: Batch, weights: Weights, into: NativeGradient
    ) -> list[float]:
        """Writes every parameter's gradient of the loss; returns the loss's sums. The policy is packed for this optimizer step."""
        features, activations = self.native.forward(observation)
        output = self.heads.outputs(features, features)
        slopes = self.heads.slopes(self.policy.spec.action, output, batch, weights, into.heads)
        into.heads.write_gradients(slopes, features, features)
        by_features = torch.mm(slopes.action, self.heads.action_weight)
        by_features.addmm_(slopes.value.unsqueeze(1), self.heads.value_weight)
        self.native.backward(observation, features, activations, by_features, into.trunk)
        return slopes.sums
