"""Any policy, differentiated by torch's autograd."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.policies import heads
from parallel_ppo.policies.network import Acted, Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class AutogradNetwork:
    takes_loss_gradient = False

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.parameters = {name: value for name, value in policy.named_parameters() if name != "log_std"}
        self.output: Output | None = None

    def begin_inference(self) -> None:
        self.policy.forget_layouts()

    def begin_step(self, step: tuple[int, ...]) -> None:
        pass

    def act(self, observation: Any, noise: np.ndarray) -> Acted:
        return heads.acted(self.policy.spec.action, self.infer(observation), noise)

    def infer(self, observation: Any) -> Output:
        with torch.inference_mode():
            if self.policy.cell is None:
                return self.policy(observation)
            output, state = self.policy.unrolled(observation)
            observation.state.copy_(state)
            return output

    def forward(self, observation: Any) -> Output:
        self.output = self.policy(observation)
        return self.output

    def backward(self, gradient: OutputGradient, into: dict[str, Tensor]) -> None:
        assert self.output is not None, "forward comes first"
        outputs = [self.output.action, self.output.values]
        slopes = [gradient.action, gradient.values.contiguous()]
        found = torch.autograd.grad(outputs, list(self.parameters.values()), slopes)
        self.output = None
        for name, values in zip(self.parameters, found, strict=True):
            into[name].copy_(values)
        if gradient.log_std is not None:
            into["log_std"].copy_(gradient.log_std)

    def gradient_views(self, flat: Tensor) -> dict[str, Tensor]:
        return views(self.policy, flat)
