"""The action and the value head over a flat vector, of parameters or of gradients, for networks that need
no autograd.

B samples, F features, K action outputs.
"""

import torch
from torch import Tensor

from parallel_ppo.policies.network import Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class HeadLayers:
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

    def write_gradients(self, gradient: OutputGradient, features: Tensor, value_features: Tensor) -> None:
        """Into this vector, from the features that the heads read."""
        torch.mm(gradient.action.t(), features, out=self.action_weight)
        torch.sum(gradient.action, 0, out=self.action_bias)
        torch.mm(gradient.value.unsqueeze(0), value_features, out=self.value_weight)
        torch.sum(gradient.value.unsqueeze(1), 0, out=self.value_bias)
        if self.log_std is not None:
            assert gradient.log_std is not None
            self.log_std.copy_(gradient.log_std)
