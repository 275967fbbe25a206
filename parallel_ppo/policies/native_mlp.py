"""A policy of two MLPs on our own kernels, differentiated without autograd."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from parallel_ppo.kernels import native_mlp
from parallel_ppo.policies import heads
from parallel_ppo.policies.head_layers import value_rows
from parallel_ppo.policies.network import Acted, Output, OutputGradient, values_of
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class MlpViews(NamedTuple):
    """Where the parameters, or the gradients of a lane, lie."""

    tensors: list[Tensor]  # in the order of the kernels
    pointers: Any
    log_std: Tensor | None


class NativeMlp:
    takes_loss_gradient = True

    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        self.policy, spec = policy, policy.spec.action
        named = views(policy, parameters)
        tensors = list(_in_order(named).values())
        sizes = [tensors[0].shape[1], *(len(tensor) for tensor in tensors[: len(tensors) // 2 - 2 : 2])]
        self.native = native_mlp.NativeMlp(sizes, tensors)
        self.log_std = named.get("log_std")
        is_categorical = spec.kind == "categorical"
        self.choices = (ctypes.c_int * len(spec.sizes))(*spec.sizes) if is_categorical else None
        self.step: tuple[int, ...] | None = None  # whose weights are laid out; None: for inference
        self.observation: Tensor | None = None  # of the last `forward`

    def begin_inference(self) -> None:
        self.native.load()
        self.step = None

    def begin_step(self, step: tuple[int, ...]) -> None:
        """Weights are laid out once for all lanes of a step."""
        if step != self.step:
            self.native.load()
            self.step = step

    def act(self, observation: Tensor, noise: np.ndarray) -> Acted:
        if self.policy.spec.action.kind != "bernoulli":
            act = self.native.act(observation.contiguous(), noise, self.choices, self.log_std)
            return Acted(*act[:2], *act[2].T)
        output = self.infer(observation)
        action, log_prob = heads.act(self.policy.spec.action, output.action, output.log_std, noise)
        return Acted(action, log_prob, *values_of(output))

    def infer(self, observation: Tensor) -> Output:
        action, values = self.native.forward(observation.contiguous())
        return Output(action, self.log_std, *values.unbind(1))

    def forward(self, observation: Tensor) -> Output:
        self.observation = observation.contiguous()
        action, values = self.native.forward(self.observation)
        return Output(action, self.log_std, *values.unbind(1))

    def backward(self, gradient: OutputGradient, into: MlpViews) -> None:
        assert self.observation is not None, "forward comes first"
        self.native.backward(self.observation, gradient.action, value_rows(gradient).t(), into.pointers)
        if into.log_std is not None:
            assert gradient.log_std is not None
            into.log_std.copy_(gradient.log_std)
        self.observation = None

    def gradient_views(self, flat: Tensor) -> MlpViews:
        named = views(self.policy, flat)
        tensors = list(_in_order(named).values())
        return MlpViews(tensors, self.native.pointers(tensors), named.get("log_std"))

    def offsets(self, flat: Tensor) -> tuple[list[int], int | None]:
        """Where each parameter begins in a flat vector, in the order of the kernels; and `log_std`."""
        named = views(self.policy, flat)
        begins = {name: (view.data_ptr() - flat.data_ptr()) // 4 for name, view in named.items()}
        return [begins[name] for name in _in_order(named)], begins.get("log_std")


def _in_order(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """As the kernels take them; without log_std."""
    prefixes = "trunk.", "value_trunk.", "action_head.", "value_head."
    return {name: view for prefix in prefixes for name, view in named.items() if name.startswith(prefix)}
