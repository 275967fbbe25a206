"""The two MLPs of a vector policy as one batched network with its backward pass written out.

For small networks the time goes into calls, not arithmetic: policy and value network are evaluated together as one batch of
two. The views lie over the flat parameter vector, so nothing is copied.
B samples, N inputs, H hidden units, K action outputs; the leading 2 is policy and value.
"""

import torch
from torch import Tensor

from parallel_ppo.algorithms.ppo_gradient import Batch, Weights
from parallel_ppo.policies.policy import Output, Policy, views
from parallel_ppo.policies.written_heads import WrittenHeads


class StackedViews:
    """The parameters of both networks, layer by layer, over a flat vector (of parameters or of gradients)."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        names = [name[len("trunk.") :] for name in named if name.startswith("trunk.") and "weight" in name]
        self.weights = [_stacked(named, flat, name) for name in names]  # [2, out, in]
        biases = [_stacked(named, flat, name.replace("weight", "bias")) for name in names]
        self.biases = [bias.unsqueeze(1) for bias in biases]  # [2, 1, out]
        self.heads = WrittenHeads(policy, flat)


def _stacked(named: dict[str, Tensor], flat: Tensor, name: str) -> Tensor:
    """Both networks have the same layers, so one stride leads from each parameter to its twin."""
    first, second = named[f"trunk.{name}"], named[f"value_trunk.{name}"]
    between = second.storage_offset() - first.storage_offset()
    return flat.as_strided((2, *first.shape), (between, *first.stride()), first.storage_offset())


class StackedMlp:
    """Evaluates and differentiates a policy of two MLPs. Stands in for `Policy` in the workers, never in a file."""

    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        assert policy.value_trunk is not None
        self.policy = policy
        self.at = StackedViews(policy, parameters)
        self.transposed = [weight.transpose(1, 2) for weight in self.at.weights]

    def gradient_views(self, flat: Tensor) -> StackedViews:
        return StackedViews(self.policy, flat)

    def _hidden(self, observation: Tensor) -> list[Tensor]:
        """The input and the output of every hidden layer, each [2, B, ...]."""
        layers = [observation.expand(2, *observation.shape)]
        for weight, bias in zip(self.transposed, self.at.biases, strict=True):
            layers.append(torch.baddbmm(bias, layers[-1], weight).tanh_())
        return layers

    def __call__(self, observation: Tensor) -> Output:
        return self.at.heads.outputs(*self._hidden(observation)[-1])

    @torch.no_grad()
    def differentiate(
        self, observation: Tensor, batch: Batch, weights: Weights, into: StackedViews
    ) -> list[float]:
        """Writes every parameter's gradient of the loss; returns the loss's sums."""
        layers = self._hidden(observation)
        heads, features = self.at.heads, layers[-1]
        slopes = heads.slopes(self.policy.spec.action, heads.outputs(*features), batch, weights, into.heads)
        into.heads.write_gradients(slopes, *features)
        if self.transposed:
            slope = torch.empty_like(features)
            torch.mm(slopes.action, heads.action_weight, out=slope[0])
            torch.mul(slopes.value.unsqueeze(1), heads.value_weight, out=slope[1])
            self._backward(layers, slope, into)
        return slopes.sums

    def _backward(self, layers: list[Tensor], slope: Tensor, into: StackedViews) -> None:
        for index in range(len(self.transposed) - 1, -1, -1):
            slope = torch.ops.aten.tanh_backward(slope, layers[index + 1])
            torch.bmm(slope.transpose(1, 2), layers[index], out=into.weights[index])
            torch.sum(slope, 1, keepdim=True, out=into.biases[index])
            if index:
                slope = torch.bmm(slope, self.at.weights[index])
