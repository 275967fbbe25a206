"""The action and the value head with their backward pass written out, over a flat vector of parameters or of gradients.

For trunks that are differentiated without autograd. B samples, F features, K action outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parallel_ppo.algorithms.ppo_gradient import Batch, Weights, loss_gradient
from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.policies.policy import Output, Policy, views


class OutputSlopes(NamedTuple):
    action: Tensor  # [B, K] of the loss, as is the next
    value: Tensor  # [B]
    sums: list[float]  # in the order of `ppo.LossSums`


class WrittenHeads:
    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        self.action_weight, self.action_bias = named["action_head.weight"], named["action_head.bias"]
        self.value_weight, self.value_bias = named["value_head.weight"], named["value_head.bias"]
        self.log_std = named.get("log_std")
        self.action_transposed, self.value_transposed = self.action_weight.t(), self.value_weight.t()

    def outputs(self, features: Tensor, value_features: Tensor) -> Output:
        action = torch.addmm(self.action_bias, features, self.action_transposed)
        value = torch.addmm(self.value_bias, value_features, self.value_transposed).squeeze(1)
        return Output(action, self.log_std, value)

    def slopes(
        self, spec: ActionSpec, output: Output, batch: Batch, weights: Weights, into: "WrittenHeads"
    ) -> OutputSlopes:
        """The loss's slopes by the outputs; a gradient of `log_std` goes into the lane at once."""
        found = loss_gradient(
            spec=spec, outputs=output.action.numpy(), log_std=None if output.log_std is None else output.log_std.numpy(),
            value=output.value.numpy(), batch=batch, weights=weights,
        )  # fmt: skip
        if into.log_std is not None:
            into.log_std.copy_(torch.from_numpy(found.log_std))
        return OutputSlopes(torch.from_numpy(found.action), torch.from_numpy(found.value), found.sums)

    def write_gradients(self, slopes: OutputSlopes, features: Tensor, value_features: Tensor) -> None:
        """Into this vector, from the features that the heads read."""
        torch.mm(slopes.action.t(), features, out=self.action_weight)
        torch.sum(slopes.action, 0, out=self.action_bias)
        torch.mm(slopes.value.unsqueeze(0), value_features, out=self.value_weight)
        torch.sum(slopes.value.unsqueeze(1), 0, out=self.value_bias)
