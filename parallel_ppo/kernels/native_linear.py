"""A linear layer on our own kernels, differentiable by autograd. B samples."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor, nn

from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import load_library

UNIT = 64  # inputs and outputs are multiples of it


@functools.cache
def _library() -> ctypes.CDLL:
    library = load_library(choose_variant())
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    library.linear_scratch_floats.restype = ctypes.c_size_t
    library.linear_scratch_floats.argtypes = [integer] * 3
    library.linear_layer_forward.restype = library.linear_layer_backward.restype = None
    library.linear_layer_forward.argtypes = [
        integer, integer, pointer, integer, pointer, pointer, integer, pointer, pointer,
    ]  # fmt: skip
    library.linear_layer_backward.argtypes = [
        integer, integer, pointer, integer, *[pointer] * 3, integer, *[pointer] * 4,
    ]  # fmt: skip
    return library


def is_suitable(num_inputs: int, num_outputs: int) -> bool:
    return num_inputs % UNIT == 0 and num_outputs % UNIT == 0


class NativeLinear(nn.Linear):
    """[B, inputs] -> [B, outputs], through a ReLU where it is asked for."""

    def __init__(self, num_inputs: int, num_outputs: int, *, relu: bool) -> None:
        assert is_suitable(num_inputs, num_outputs), (num_inputs, num_outputs)
        super().__init__(num_inputs, num_outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _Differentiable.apply(x, self.weight, self.bias, self.relu)
        return _forward(x, self.weight, self.bias, self.relu)


def _forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    outputs, inputs = weight.shape
    out = x.new_empty(len(x), outputs)
    assert all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in (x, weight, bias))
    scratch = _scratch(inputs, outputs, len(x))
    _library().linear_layer_forward(
        inputs, outputs, x.data_ptr(), len(x), weight.data_ptr(), bias.data_ptr(), relu, scratch.data_ptr(),
        out.data_ptr(),
    )  # fmt: skip
    return out


def _scratch(inputs: int, outputs: int, num_samples: int) -> Tensor:
    return torch.empty(_library().linear_scratch_floats(inputs, outputs, num_samples))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        out = _forward(x, weight, bias, relu)
        context.relu = relu
        context.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        x, weight, out = context.saved_tensors
        outputs, inputs = weight.shape
        slope, scratch = slopes[0].contiguous(), _scratch(inputs, outputs, len(x))
        by_weight, by_bias, by_x = torch.empty_like(weight), weight.new_empty(outputs), torch.empty_like(x)
        _library().linear_layer_backward(
            inputs, outputs, x.data_ptr(), len(x), weight.data_ptr(), out.data_ptr(), slope.data_ptr(),
            context.relu, scratch.data_ptr(), by_weight.data_ptr(), by_bias.data_ptr(), by_x.data_ptr(),
        )  # fmt: skip
        return by_x, by_weight, by_bias, None
