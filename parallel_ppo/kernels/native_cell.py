"""A GRU or LSTM cell on our own kernels, over sequences and back through time (`cell.c`).

T steps, B samples, I inputs, H units, G gates (3 or 4), S floats of a state: H of a GRU, 2H of an LSTM (h, then c).
A sample depends on no other sample and a step on no later one, bit for bit: acting step by step and
computing a whole sequence give the same numbers.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from parallel_ppo.kernels.api import constant, load_library, structure
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import allocate, new_floats, pointers_to

GATES = {"gru": 3, "lstm": 4}


class Kept(NamedTuple):
    """Arrays that the last `forward` with `keep` leaves for `backward`."""

    features: Tensor
    starts: Tensor
    space: Tensor


class NativeCell:
    """For one process. Memory is allocated at first use of a T and B and kept."""

    def __init__(self, kind: str, num_inputs: int, size: int, parameters: Sequence[Tensor]) -> None:
        """`parameters`: input weight [G*H, I], recurrent weight [G*H, H], input bias and recurrent bias [G*H],
        as in torch's nn.GRU and nn.LSTM. They are read in place.
        """
        self.num_inputs, self.size = num_inputs, size
        self.state_size = 2 * size if kind == "lstm" else size
        rows = GATES[kind] * size
        self.shapes = [(rows, num_inputs), (rows, size), (rows,), (rows,)]
        self.check(parameters)
        self.parameters, self.pointers = list(parameters), pointers_to(parameters)
        self.library = load_library(choose_variant())
        self.native = structure("recurrent_cell")(
            constant(kind.upper()), num_inputs, size, ctypes.addressof(self.pointers)
        )
        self.address = ctypes.addressof(self.native)
        self.packed = allocate(self.library.cell_packed_floats(self.address))
        self.native.packed = self.packed.data_ptr()
        self.spaces: dict[tuple[int, int, bool], Tensor] = {}
        self.kept: Kept | None = None

    def load(self) -> None:
        """Must be called after every change of the parameters."""
        self.library.cell_pack(self.address)

    def forward(
        self, features: Tensor, state: Tensor, starts: Tensor, *, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """Features [T*B, I] and the state before them [B, S] -> output [T*B, H] and the final state.
        The state is zero before each step where `starts` (uint8 or bool, [T, B]) is set. `keep`: for `backward`,
        until the next call with it.
        """
        (num_steps, num_samples), rows = starts.shape, starts.numel()
        assert features.shape == (rows, self.num_inputs) and features.dtype == torch.float32
        assert state.shape == (num_samples, self.state_size) and state.dtype == torch.float32
        assert starts.dtype in (torch.uint8, torch.bool)
        assert all(tensor.is_contiguous() for tensor in (features, state, starts))
        space = self.space(num_steps, num_samples, keep)
        output, final = new_floats(rows, self.size), new_floats(num_samples, self.state_size)
        self.library.cell_forward(
            self.address,
            features.data_ptr(),
            state.data_ptr(),
            starts.data_ptr(),
            num_steps,
            num_samples,
            keep,
            space.data_ptr(),
            output.data_ptr(),
            final.data_ptr(),
        )
        if keep:
            self.kept = Kept(features, starts, space)
        return output, final

    def backward(self, d_output: Tensor, into: Sequence[Tensor]) -> Tensor:
        """Overwrites the gradients of the parameters, in their order; returns the derivative in the features."""
        assert self.kept is not None, "forward comes first"
        features, starts, space = self.kept
        self.check(into)
        assert d_output.shape == (len(features), self.size) and d_output.dtype == torch.float32
        assert d_output.is_contiguous()
        d_features = new_floats(*features.shape)
        self.library.cell_backward(
            self.address,
            features.data_ptr(),
            starts.data_ptr(),
            *starts.shape,
            space.data_ptr(),
            d_output.data_ptr(),
            pointers_to(into),
            d_features.data_ptr(),
        )
        self.kept = None
        return d_features

    def space(self, num_steps: int, num_samples: int, keep: bool) -> Tensor:
        sizes = num_steps, num_samples, keep
        if sizes not in self.spaces:
            self.spaces[sizes] = allocate(self.library.cell_space_floats(self.address, *sizes))
        return self.spaces[sizes]

    def check(self, tensors: Sequence[Tensor]) -> None:
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            assert tensor.shape == shape and tensor.dtype == torch.float32 and tensor.is_contiguous(), shape
