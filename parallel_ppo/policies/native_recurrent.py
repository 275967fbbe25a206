"""A recurrent policy on our own kernels: the trunk over all steps at once, the cell step by step, the heads.

Gradients go back the same way. With its own cell, the value function has its own head, and with MLPs its own trunk.
T steps, B sequences, N samples, F features, H units of a cell.
"""

import ctypes
import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.kernels.api import load_library, structure
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import NativeHeads, NativeTrunk, allocate, new_floats, pointers_to
from parallel_ppo.kernels.native_cell import NativeCell
from parallel_ppo.policies import heads
from parallel_ppo.policies.head_layers import head_tensors
from parallel_ppo.policies.network import Acted, Output, OutputGradient, Sequences
from parallel_ppo.policies.parameters import views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings


class ImageTrunk:
    def __init__(self, settings: Settings, shape: tuple[int, ...], parameters: list[Tensor]) -> None:
        training, self.parameters = settings.training, parameters
        self.native = NativeTrunk(training.policy, shape, factor=training.width)
        self.kept: tuple[Tensor, Tensor, Tensor] | None = None

    def load(self, *, training: bool) -> None:
        self.native.load(self.parameters, training=training)

    def features(self, observation: Tensor) -> Tensor:
        return self.native.features(observation)

    def forward(self, observation: Tensor) -> Tensor:
        features, activations = self.native.forward(observation)
        self.kept = observation, features, activations
        return features

    def backward(self, by_features: Tensor, into: list[Tensor]) -> None:
        assert self.kept is not None, "forward comes first"
        self.native.backward(*self.kept, by_features, into)
        self.kept = None


class VectorTrunk:
    """The layers of an MLP."""

    def __init__(self, parameters: list[Tensor], *, relu: bool) -> None:
        """Weight and bias of each layer."""
        weights = parameters[::2]
        sizes = [weights[0].shape[1], *map(len, weights)]
        assert [tuple(weight.shape) for weight in weights] == [(n, m) for m, n in itertools.pairwise(sizes)]
        self.parameters, self.pointers = parameters, pointers_to(parameters)
        self.sizes, self.num_features = np.array(sizes, np.int32), sizes[-1]
        self.native = structure("mlp")(
            layers=len(weights),
            relu=relu,
            sizes=self.sizes.ctypes.data,
            parameters=ctypes.addressof(self.pointers),
        )
        self.address, self.library = ctypes.addressof(self.native), load_library(choose_variant())
        self.packed = allocate(self.library.mlp_packed_floats(self.address))
        self.native.packed = self.packed.data_ptr()
        self.spaces: dict[int, Tensor] = {}  # by the number of samples
        self.observation: Tensor | None = None

    def load(self, *, training: bool) -> None:
        self.library.layers_pack(self.address)

    def features(self, observation: Tensor) -> Tensor:
        return self.forward(observation)

    def forward(self, observation: Tensor) -> Tensor:
        self.observation, num_samples = observation.contiguous(), len(observation)
        assert observation.dtype == torch.float32 and observation.shape[1] == self.sizes[0]
        if num_samples not in self.spaces:
            self.spaces[num_samples] = allocate(self.library.mlp_space_floats(self.address, num_samples))
        features = new_floats(num_samples, self.num_features)
        self.library.layers_forward(
            self.address,
            self.observation.data_ptr(),
            num_samples,
            self.spaces[num_samples].data_ptr(),
            features.data_ptr(),
        )
        return features

    def backward(self, by_features: Tensor, into: list[Tensor]) -> None:
        assert self.observation is not None, "forward comes first"
        num_samples = len(self.observation)
        assert by_features.shape == (num_samples, self.num_features) and by_features.is_contiguous()
        self.library.layers_backward(
            self.address,
            self.observation.data_ptr(),
            num_samples,
            self.spaces[num_samples].data_ptr(),
            by_features.data_ptr(),
            pointers_to(into),
        )


class RecurrentViews:
    """Parameters, or the gradients of a microbatch, by part."""

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        named = views(policy, flat)
        self.log_std, tensors, none = named.get("log_std"), head_tensors(named), new_floats(0)

        def of(part: str) -> list[Tensor]:
            return [view for name, view in named.items() if name.startswith(f"{part}.")]

        self.trunks = [part for part in (of("trunk"), of("value_trunk")) if part]
        self.cells = [part for part in (of("cell"), of("value_cell")) if part]
        self.heads = [tensors]
        if len(self.cells) == 2:  # a head for each, without rows of the other
            empty = [new_floats(0, tensors[0].shape[1]), none]
            self.heads = [[*tensors[:2], *empty], [*empty, *tensors[2:]]]


class Kept(NamedTuple):
    """Arrays that the last `forward` keeps for `backward`."""

    sequences: Sequences
    outputs: list[Tensor]  # [N, H] of each cell


class NativeRecurrent:
    takes_loss_gradient = True

    def __init__(self, settings: Settings, policy: Policy, parameters: Tensor) -> None:
        assert policy.cell is not None
        self.policy, spec, own = policy, policy.spec, RecurrentViews(policy, parameters)
        self.log_std, action = own.log_std, spec.action
        if spec.is_image:
            self.trunks: list[Any] = [ImageTrunk(settings, spec.observation_shape, own.trunks[0])]
        else:
            self.trunks = [VectorTrunk(part, relu=policy.trunk.is_relu) for part in own.trunks]
        recurrence, num_features = settings.recurrence, policy.trunk.num_features
        self.cells = [NativeCell(recurrence.kind, num_features, recurrence.size, part) for part in own.cells]
        self.can_choose = action.kind == "categorical" and len(own.heads) == 1
        sizes = action.sizes if self.can_choose else ()
        self.heads = [NativeHeads(part, sizes) for part in own.heads]
        self.step: tuple[int, ...] | None = None  # the step whose weights are packed; None: inference
        self.kept: Kept | None = None

    def begin_inference(self) -> None:
        self.load(training=False)
        self.step = None

    def begin_step(self, step: tuple[int, ...]) -> None:
        """Packs the weights once for all microbatches of a step."""
        if step != self.step:
            self.load(training=True)
            self.step = step

    def load(self, *, training: bool) -> None:
        for trunk in self.trunks:
            trunk.load(training=training)
        for cell in self.cells:
            cell.load()

    def act(self, observation: Sequences, noise: np.ndarray) -> Acted:
        outputs = self.remembered(observation)
        if self.can_choose:
            return Acted(*self.heads[0].act(outputs[0], noise))
        return heads.acted(self.policy.spec.action, self.outputs(outputs), noise)

    def infer(self, observation: Sequences) -> Output:
        return self.outputs(self.remembered(observation))

    def remembered(self, sequences: Sequences) -> list[Tensor]:
        """The output of each cell; the state becomes that after the last step."""
        features = [trunk.features(sequences.observation) for trunk in self.trunks]
        return self.through_cells(sequences, features, keep=False)

    def through_cells(self, sequences: Sequences, features: list[Tensor], *, keep: bool) -> list[Tensor]:
        found, width = [], sequences.state.shape[1] // len(self.cells)
        for index, cell in enumerate(self.cells):
            rows, state, starts = sequences.by_step(features[min(index, len(features) - 1)])
            part = slice(index * width, (index + 1) * width)
            output, after = cell.forward(rows, state[:, part].contiguous(), starts.contiguous(), keep=keep)
            if not keep:
                sequences.state[:, part] = after
            found.append(sequences.as_given(output))
        return found

    def outputs(self, cell_outputs: list[Tensor]) -> Output:
        parts = [own.forward(output) for own, output in zip(self.heads, cell_outputs, strict=True)]
        return Output(parts[0][0], self.log_std, parts[-1][1])

    def forward(self, observation: Sequences) -> Output:
        features = [trunk.forward(observation.observation) for trunk in self.trunks]
        self.kept = Kept(observation, self.through_cells(observation, features, keep=True))
        return self.outputs(self.kept.outputs)

    def backward(self, gradient: OutputGradient, into: RecurrentViews) -> None:
        assert self.kept is not None, "forward comes first"
        by_action, by_values = gradient.action.contiguous(), gradient.values.contiguous()
        by_features = []
        for index, (own, output) in enumerate(zip(self.heads, self.kept.outputs, strict=True)):
            slopes = [by_action, by_values]
            if len(self.heads) == 2:
                slopes[1 - index] = new_floats(len(output), 0)
            by_output = own.backward(output, slopes[0], slopes[1], into.heads[index])
            by_features.append(self.before_cell(index, by_output, into.cells[index]))
        if len(by_features) > len(self.trunks):
            by_features = [by_features[0] + by_features[1]]
        for trunk, slope, own_into in zip(self.trunks, by_features, into.trunks, strict=True):
            trunk.backward(slope, own_into)
        if into.log_std is not None:
            assert gradient.log_std is not None
            into.log_std.copy_(gradient.log_std)
        self.kept = None

    def before_cell(self, index: int, by_output: Tensor, into: list[Tensor]) -> Tensor:
        assert self.kept is not None
        rows = self.kept.sequences.by_step(by_output)[0]
        return self.kept.sequences.as_given(self.cells[index].backward(rows.contiguous(), into))

    def gradient_views(self, flat: Tensor) -> RecurrentViews:
        return RecurrentViews(self.policy, flat)
