"""The two MLPs of a vector policy as one batched network with its backward pass written out.

For small networks the time goes into calls, not arithmetic: policy and value network are evaluated together as one batch of
two. The views lie over the flat parameter vector, so nothing is copied.
B samples, N inputs, H hidden units, K action outputs; the leading 2 is policy and value.
"""

import torch
from torch import Tensor

from parallel_ppo.policies.policy import Output, Policy, views
from parallel_ppo.slopes import Batch, Weights, loss_slopes


class TwinViews:
    """The parameters of both networks, layer by layer, over a flat vector (of parameters or of gradients)."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        names = [name[len("trunk.") :] for name in named if name.startswith("trunk.") and "weight" in name]
        self.weights = [_stacked(named, flat, name) for name in names]  # [2, out, in]
        biases = [_stacked(named, flat, name.replace("weight", "bias")) for name in names]
        self.biases = [bias.unsqueeze(1) for bias in biases]  # [2, 1, out]
        self.action_weight, self.action_bias = named["action_head.weight"], named["action_head.bias"]
        self.value_weight, self.value_bias = named["value_head.weight"], named["value_head.bias"]
        self.log_std = named.get("log_std")


def _stacked(named: dict[str, Tensor], flat: Tensor, name: str) -> Tensor:
    """Both networks have the same layers, so one stride leads from each parameter to its twin."""
    first, second = named[f"trunk.{name}"], named[f"value_trunk.{name}"]
    between = second.storage_offset() - first.storage_offset()
    return flat.as_strided((2, *first.shape), (between, *first.stride()), first.storage_offset())


class Twin:
    """Evaluates and differentiates a policy of two MLPs. Stands in for `Policy` in the workers, never in a file."""

    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        assert policy.value_trunk is not None
        self.policy = policy
        self.at = TwinViews(policy, parameters)
        self.transposed = [weight.transpose(1, 2) for weight in self.at.weights]
        self.action_transposed, self.value_transposed = self.at.action_weight.t(), self.at.value_weight.t()
        self.gradients: dict[int, TwinViews] = {}

    def _hidden(self, observation: Tensor) -> list[Tensor]:
        """The input and the output of every hidden layer, each [2, B, ...]."""
        layers = [observation.expand(2, *observation.shape)]
        for weight, bias in zip(self.transposed, self.at.biases, strict=True):
            layers.append(torch.baddbmm(bias, layers[-1], weight).tanh_())
        return layers

    def _heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        at = self.at
        action = torch.addmm(at.action_bias, features[0], self.action_transposed)
        return action, torch.addmm(at.value_bias, features[1], self.value_transposed).squeeze(1)

    def __call__(self, observation: Tensor) -> Output:
        action, value = self._heads(self._hidden(observation)[-1])
        return Output(action, self.at.log_std, value)

    @torch.no_grad()
    def differentiate(self, observation: Tensor, batch: Batch, weights: Weights, into: Tensor) -> list[float]:
        """Writes the loss's gradient into the flat vector `into`, every parameter of it; returns the loss's sums."""
        layers = self._hidden(observation)
        action, value = self._heads(layers[-1])
        log_std = None if self.at.log_std is None else self.at.log_std.numpy()
        slopes = loss_slopes(
            spec=self.policy.spec.action, outputs=action.numpy(), log_std=log_std, value=value.numpy(),
            batch=batch, weights=weights,
        )  # fmt: skip
        gradient = self._gradient_views(into)
        if gradient.log_std is not None:
            gradient.log_std.copy_(torch.from_numpy(slopes.log_std))
        self._backward(layers, torch.from_numpy(slopes.action), torch.from_numpy(slopes.value), gradient)
        return slopes.sums

    def _backward(self, layers: list[Tensor], action: Tensor, value: Tensor, into: TwinViews) -> None:
        at, features = self.at, layers[-1]
        torch.mm(action.t(), features[0], out=into.action_weight)
        torch.sum(action, 0, out=into.action_bias)
        torch.mm(value.unsqueeze(0), features[1], out=into.value_weight)
        torch.sum(value.unsqueeze(1), 0, out=into.value_bias)
        if not self.transposed:
            return
        slope = torch.empty_like(features)
        torch.mm(action, at.action_weight, out=slope[0])
        torch.mul(value.unsqueeze(1), at.value_weight, out=slope[1])
        for index in range(len(self.transposed) - 1, -1, -1):
            slope = torch.ops.aten.tanh_backward(slope, layers[index + 1])
            torch.bmm(slope.transpose(1, 2), layers[index], out=into.weights[index])
            torch.sum(slope, 1, keepdim=True, out=into.biases[index])
            if index:
                slope = torch.bmm(slope, at.weights[index])

    def _gradient_views(self, gradient: Tensor) -> TwinViews:
        """Views of a lane are made once: lanes live at fixed places in shared memory."""
        place = gradient.data_ptr()
        if place not in self.gradients:
            gradient.zero_()  # what lies between the parameters stays 0
            self.gradients[place] = TwinViews(self.policy, gradient)
        return self.gradients[place]
