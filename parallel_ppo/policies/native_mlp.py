"""A policy of two MLPs on our own kernels: one call for a forward pass, a backward pass or an action.

B samples, N inputs, K outputs, V values (the second is curiosity's), A action components. A batch shape gives the
same bits on every call, in every process and for every instruction set.
"""

import ctypes
import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.kernels.api import load_library, structure
from parallel_ppo.kernels.choice import UNITS, choose_variant
from parallel_ppo.kernels.native import address_of, allocate, new_floats, pointers_to
from parallel_ppo.policies import heads
from parallel_ppo.policies.network import Acted, Output, OutputGradient
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy


class MlpViews(NamedTuple):
    """The gradients of a microbatch."""

    tensors: list[Tensor]  # in the order of the kernels
    pointers: Any
    log_std: Tensor | None


class Space(NamedTuple):
    """Buffers for batches of one size."""

    kept: Tensor  # written by a forward pass, read by the backward pass
    outputs: Tensor  # outputs that only the kernels read
    kept_at: int
    outputs_at: int


class NativeMlp:
    takes_loss_gradient = True

    def __init__(self, policy: Policy, parameters: Tensor) -> None:
        self.policy, spec = policy, policy.spec.action
        named = views(policy, parameters)
        tensors = list(_in_order(named).values())
        sizes = [tensors[0].shape[1], *(len(tensor) for tensor in tensors[: len(tensors) // 2 - 2 : 2])]
        self.num_inputs, self.num_outputs, self.num_values = sizes[0], len(tensors[-4]), len(tensors[-2])
        shapes = [(after, before) for before, after in itertools.pairwise(sizes)] * 2
        shapes += [(self.num_outputs, sizes[-1]), (self.num_values, sizes[-1])]
        assert len(sizes) > 1 and not any(units % UNITS for units in sizes[1:])
        self.shapes = [shape for weight in shapes for shape in (weight, weight[:1])]
        self.log_std = named.get("log_std")
        choices = spec.sizes if spec.kind == "categorical" else []
        self.sizes, self.choices = np.array(sizes, np.int32), np.array(choices, np.int32)
        self.parameters, self.pointers = tensors, self.pointers_to(tensors)
        self.native = structure("mlp")(
            layers=len(sizes) - 1,
            outputs=self.num_outputs,
            values=self.num_values,
            components=len(choices),
            relu=policy.trunk.is_relu,
            sizes=self.sizes.ctypes.data,
            choices=self.choices.ctypes.data,
            parameters=ctypes.addressof(self.pointers),
            log_std=None if self.log_std is None else self.log_std.data_ptr(),
        )
        self.address, self.library = ctypes.addressof(self.native), load_library(choose_variant())
        self.packed = allocate(self.library.mlp_packed_floats(self.address))
        self.native.packed = self.packed.data_ptr()
        self.spaces: dict[tuple[int, ...], Space] = {}  # by the shape of the observation
        self.step: tuple[int, ...] | None = None  # the step whose weights are packed; None: inference
        self.observation: Tensor | None = None  # the last `forward`

    def begin_inference(self) -> None:
        self.library.mlp_pack(self.address)
        self.step = None

    def begin_step(self, step: tuple[int, ...]) -> None:
        """Packs the weights once for all microbatches of a step."""
        if step != self.step:
            self.library.mlp_pack(self.address)
            self.step = step

    def act(self, observation: Tensor, noise: np.ndarray) -> Acted:
        if self.policy.spec.action.kind == "bernoulli":
            return heads.acted(self.policy.spec.action, self.infer(observation), noise)
        observation = observation.contiguous()
        space, (num_samples, components) = self.space(observation), noise.shape
        assert num_samples == len(observation)
        result = np.empty((1 + self.num_values + components, num_samples), np.float32)
        at, row = address_of(result), 4 * num_samples
        self.library.mlp_act(
            self.address,
            observation.data_ptr(),
            num_samples,
            space.kept_at,
            space.outputs_at,
            address_of(noise),
            at + (1 + self.num_values) * row,
            at,
            at + row,
        )
        action = result[1 + self.num_values :].reshape(num_samples, components)
        values = result[1 : 1 + self.num_values].reshape(num_samples, self.num_values)
        return Acted(action, result[0], values)

    def infer(self, observation: Tensor) -> Output:
        observation = observation.contiguous()
        space, num_samples = self.space(observation), len(observation)
        action = new_floats(num_samples, self.num_outputs)
        values = new_floats(num_samples, self.num_values)
        self.library.mlp_forward(
            self.address,
            observation.data_ptr(),
            num_samples,
            space.kept_at,
            action.data_ptr(),
            values.data_ptr(),
        )
        return Output(action, self.log_std, values)

    def forward(self, observation: Tensor) -> Output:
        self.observation = observation.contiguous()
        return self.infer(self.observation)

    def backward(self, gradient: OutputGradient, into: MlpViews) -> None:
        assert self.observation is not None, "forward comes first"
        num_samples = len(self.observation)
        by_action, by_value = gradient.action.contiguous(), gradient.values.contiguous()
        assert by_action.shape == (num_samples, self.num_outputs)
        assert by_value.shape == (num_samples, self.num_values)
        assert by_action.dtype == by_value.dtype == torch.float32
        self.library.mlp_backward(
            self.address,
            self.observation.data_ptr(),
            num_samples,
            self.space(self.observation).kept_at,
            by_action.data_ptr(),
            by_value.data_ptr(),
            into.pointers,
        )
        if into.log_std is not None:
            assert gradient.log_std is not None
            into.log_std.copy_(gradient.log_std)
        self.observation = None

    def gradient_views(self, flat: Tensor) -> MlpViews:
        named = views(self.policy, flat)
        tensors = list(_in_order(named).values())
        return MlpViews(tensors, self.pointers_to(tensors), named.get("log_std"))

    def offsets(self, flat: Tensor) -> tuple[list[int], int | None]:
        """The start of each parameter in a flat vector, in the order of the kernels, and of `log_std`."""
        named = views(self.policy, flat)
        begins = {name: (view.data_ptr() - flat.data_ptr()) // 4 for name, view in named.items()}
        return [begins[name] for name in _in_order(named)], begins.get("log_std")

    def pointers_to(self, tensors: list[Tensor]) -> Any:
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            assert tensor.shape == shape and tensor.dtype == torch.float32 and tensor.is_contiguous(), shape
        return pointers_to(tensors)

    def space(self, observation: Tensor) -> Space:
        found = self.spaces.get(observation.shape)
        if found is None:
            num_samples, num_inputs = observation.shape
            assert num_inputs == self.num_inputs, tuple(observation.shape)
            kept = allocate(self.library.mlp_space_floats(self.address, num_samples))
            outputs = allocate(num_samples * self.num_outputs)
            found = Space(kept, outputs, kept.data_ptr(), outputs.data_ptr())
            self.spaces[num_samples, num_inputs] = found
        assert observation.dtype is torch.float32
        return found


def _in_order(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """In the order of the kernels, without log_std."""
    prefixes = "trunk.", "value_trunk.", "action_head.", "value_head."
    return {name: view for prefix in prefixes for name, view in named.items() if name.startswith(prefix)}
