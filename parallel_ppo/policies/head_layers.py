"""Action and value head in a flat vector of parameters or of gradients, for networks without autograd.

B samples, F features, K action outputs, V values.
"""

import torch
from torch import Tensor

from parallel_ppo.policies.network import Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


def value_rows(gradient: OutputGradient) -> Tensor:
    """[V, B], each row contiguous."""
    return torch.stack(gradient.values.unbind(1))


def head_tensors(named: dict[str, Tensor]) -> list[Tensor]:
    """Weight and bias of the action's head, then of the value's."""
    return [named[f"{head}.{part}"] for head in ("action_head", "value_head") for part in ("weight", "bias")]


class HeadLayers:
    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        self.action_weight, self.action_bias, self.value_weight, self.value_bias = head_tensors(named)
        self.log_std = named.get("log_std")
        self.action_transposed, self.value_transposed = self.action_weight.t(), self.value_weight.t()

    def outputs(self, features: Tensor, value_features: Tensor) -> Output:
        action = torch.addmm(self.action_bias, features, self.action_transposed)
        values = torch.addmm(self.value_bias, value_features, self.value_transposed)
        return Output(action, self.log_std, values)

    def value_slope(self, gradient: OutputGradient, out: Tensor) -> None:
        """Writes the derivative by the value's features. One column and several need calls that round differently."""
        if gradient.values.shape[1] == 1:
            torch.mul(gradient.values, self.value_weight, out=out)
        else:
            torch.mm(value_rows(gradient).t(), self.value_weight, out=out)

    def write_gradients(self, gradient: OutputGradient, features: Tensor, value_features: Tensor) -> None:
        torch.mm(gradient.action.t(), features, out=self.action_weight)
        torch.sum(gradient.action, 0, out=self.action_bias)
        values = value_rows(gradient)
        torch.mm(values, value_features, out=self.value_weight)
        torch.sum(values.t(), 0, out=self.value_bias)
        if self.log_std is not None:
            assert gradient.log_std is not None
            self.log_std.copy_(gradient.log_std)
