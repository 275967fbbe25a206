"""A policy whose trunk runs on our own kernels, differentiated without autograd. Stands in for `Policy` in the workers, never in a file."""

import torch
from torch import Tensor

from parallel_ppo.policies.policy import Policy, views
from parallel_ppo.policies.written_heads import WrittenHeads
from parallel_ppo.slopes import Batch, Weights


class NativeGradient:
    """Where the gradients of a lane go."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        self.heads = WrittenHeads(policy, flat)
        self.trunk = [view for name, view in views(policy, flat).items() if name.startswith("trunk.")]


class NativeNetwork:
    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        assert policy.native is not None
        self.policy, self.native = policy, policy.native
        self.heads = WrittenHeads(policy, parameters)

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
