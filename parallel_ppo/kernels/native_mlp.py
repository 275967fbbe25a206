"""The policy's and the value's MLP on our own kernels: one call for a forward pass, a backward pass or an
action.

B samples, N inputs, K outputs, V values (of rewards and, where there is curiosity, of its own), A action
components. For a given batch shape the result is the same bits
on every call, in every process and for every instruction set.
"""

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import allocate, load_library, new_floats, pointers_to


@functools.cache
def _library(variant: str) -> ctypes.CDLL:
    library = load_library(variant)
    integer, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    library.mlp_packed_floats.restype = library.mlp_space_floats.restype = size
    library.mlp_packed_floats.argtypes = [integer, pointer]
    library.mlp_space_floats.argtypes = [integer, pointer, integer]
    shape = [integer, pointer, integer, integer, pointer]
    for name, arguments in {
        "mlp_pack": [integer, *[pointer] * 3],
        "mlp_forward": [*shape, pointer, pointer, integer, *[pointer] * 3],
        "mlp_act": [*shape, pointer, pointer, integer, pointer, pointer, integer, *[pointer] * 6],
        "mlp_backward": [*shape, pointer, integer, *[pointer] * 4],
    }.items():
        getattr(library, name).restype, getattr(library, name).argtypes = None, arguments
    return library


class NativeMlp:
    """For one process. Memory is allocated at first use of a batch size and kept."""

    def __init__(self, sizes: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        """`sizes` are the inputs and each layer's hidden units. The parameters are read in place: weight and
        bias of each layer, of the action's network and then of the value's; of the action's head; of the
        value's.
        """
        layers, outputs, values = len(sizes) - 1, len(parameters[-4]), len(parameters[-2])
        shapes = [(after, before) for before, after in itertools.pairwise(sizes)] * 2
        shapes += [(outputs, sizes[-1]), (values, sizes[-1])]
        assert layers > 0 and not any(units % 16 for units in sizes[1:])
        self.shapes = [shape for weight in shapes for shape in (weight, weight[:1])]
        self.library, self.parameters = _library(choose_variant()), list(parameters)
        self.num_inputs, self.num_outputs, self.num_values = sizes[0], outputs, values
        self.sizes = (ctypes.c_int * len(sizes))(*sizes)
        self.shape = layers, ctypes.addressof(self.sizes), outputs, values, self.pointers(self.parameters)
        self.packed = allocate(self.library.mlp_packed_floats(layers, self.shape[1]))
        self.spaces: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def pointers(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Of parameters or gradients; made once for tensors that stay where they are."""
        assert len(tensors) == len(self.shapes)
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            assert tensor.shape == shape and tensor.dtype == torch.float32 and tensor.is_contiguous(), shape
        return pointers_to(tensors)

    def load(self) -> None:
        """After every change of the parameters."""
        layers, sizes, *_, parameters = self.shape
        self.library.mlp_pack(layers, sizes, parameters, self.packed.data_ptr())

    def check(self, observation: torch.Tensor) -> int:
        assert observation.shape[1:] == (self.num_inputs,), tuple(observation.shape)
        assert observation.dtype == torch.float32 and observation.is_contiguous()
        return len(observation)

    def space(self, num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a forward pass keeps for the backward pass, and room for outputs that nobody asks for."""
        if num_samples not in self.spaces:
            floats = self.library.mlp_space_floats(*self.shape[:2], num_samples)
            self.spaces[num_samples] = allocate(floats), allocate(num_samples * self.num_outputs)
        return self.spaces[num_samples]

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Action outputs [B, K] and values [B, V]."""
        num_samples = self.check(observation)
        action = new_floats(num_samples, self.num_outputs)
        value = new_floats(num_samples, self.num_values)
        self.library.mlp_forward(
            *self.shape, self.packed.data_ptr(), observation.data_ptr(), num_samples,
            self.space(num_samples)[0].data_ptr(), action.data_ptr(), value.data_ptr(),
        )  # fmt: skip
        return action, value

    def backward(
        self, observation: torch.Tensor, by_action: torch.Tensor, by_value: torch.Tensor, gradients: Any
    ) -> None:
        """Overwrites the gradients (`pointers`), after `forward` of the same observation."""
        num_samples = self.check(observation)
        by_action, by_value = by_action.contiguous(), by_value.contiguous()
        assert by_action.shape == (num_samples, self.num_outputs) and by_value.shape == (
            num_samples,
            self.num_values,
        )
        assert by_action.dtype == by_value.dtype == torch.float32
        self.library.mlp_backward(
            *self.shape, observation.data_ptr(), num_samples, self.space(num_samples)[0].data_ptr(),
            by_action.data_ptr(), by_value.data_ptr(), gradients,
        )  # fmt: skip

    def act(
        self, observation: torch.Tensor, draws: np.ndarray, choices: Any, log_std: torch.Tensor | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [B, A], their log-probabilities [B] and values [B, V]. `choices` are the sizes of
        categorical components as an array of C integers; None: the head is Gaussian.
        """
        num_samples, components = draws.shape
        assert self.check(observation) == num_samples and draws.flags.c_contiguous
        space, outputs = self.space(num_samples)
        result = np.empty((1 + self.num_values + components, num_samples), np.float32)
        at, row = result.ctypes.data, 4 * num_samples
        self.library.mlp_act(
            *self.shape, self.packed.data_ptr(), observation.data_ptr(), num_samples, space.data_ptr(),
            outputs.data_ptr(), components if choices is not None else 0, choices,
            None if log_std is None else log_std.data_ptr(), draws.ctypes.data,
            at + (1 + self.num_values) * row, at, at + row,
        )  # fmt: skip
        value, action = result[1 : 1 + self.num_values], result[1 + self.num_values :]
        return action.reshape(num_samples, components), result[0], value.reshape(num_samples, -1)
