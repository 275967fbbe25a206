"""The IMPALA-CNN trunk on our own kernels, and the loader that says whether they can be used here.

Shapes: B samples, C image channels; an observation is uint8 [B, 64, 64, C], features are float32 [B, 256] (after the last ReLU).
For a given batch shape the result is the same bits on every call, in every process and for every instruction set.
"""

import ctypes
import functools
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parallel_ppo.kernels.build import BuildError, build
from parallel_ppo.kernels.choice import IMAGE_SIZE, WIDTHS, choose_variant, supports

NUM_FEATURES = 256
NUM_FLAT = 2048


def parameter_shapes(channels: int) -> list[tuple[int, ...]]:
    """The trunk's parameters in the order of every list of parameters or gradients here; torch's layouts."""
    shapes: list[tuple[int, ...]] = []
    for width in WIDTHS:
        for inputs in (channels, width, width, width, width):
            shapes += [(width, inputs, 3, 3), (width,)]
        channels = width
    return [*shapes, (NUM_FEATURES, NUM_FLAT), (NUM_FEATURES,)]


@functools.cache
def load_library(variant: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(build(variant)))
    except OSError as error:
        raise BuildError(f"cannot load the compiled kernels: {error}") from error
    integer, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "impala_packed_floats": (size, [integer]),
        "impala_saved_floats": (size, [integer, integer]),
        "impala_scratch_floats": (size, [integer, integer]),
        "impala_prepare_scratch": (None, [pointer, integer, integer]),
        "impala_pack": (None, [pointer, integer, integer, pointer, pointer]),
        "impala_forward": (
            None,
            [pointer, integer, integer, pointer, pointer, integer, pointer, pointer, pointer],
        ),
        "impala_backward": (
            None,
            [pointer, integer, integer, pointer, pointer, pointer, pointer, pointer, pointer, pointer],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def available(variant: str | None = None) -> tuple[bool, str]:
    """Whether the kernels can be used here (compiling them if need be), and the variant or the reason why not."""
    try:
        chosen = choose_variant(variant)
        load_library(chosen)
    except (ValueError, BuildError) as error:
        return False, str(error)
    return True, chosen


def allocate(num_floats: int) -> torch.Tensor:
    """Zeros of this process only (a fork gets its own copy), on huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, max(num_floats, 1) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.float32, count=num_floats))


def pointers_to(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class NativeImpala:
    """The trunk for one process. Memory is allocated at first use of a batch size and kept.

    Inference: `load(parameters)` after every change of the parameters, then `features(observation)` as often as needed.
    Training: `trunk(observation, parameters)` inside autograd; or `forward` and `backward` without it, which can write the gradients
    straight into their destination.
    """

    def __init__(self, channels: int, variant: str | None = None) -> None:
        ok, reason = supports(height=IMAGE_SIZE, width=IMAGE_SIZE, channels=channels, widths=WIDTHS)
        if not ok:
            raise ValueError(reason)
        self.channels = channels
        self.variant = choose_variant(variant)
        self.library = load_library(self.variant)
        self.shapes = parameter_shapes(channels)
        self.parameters: list[torch.Tensor] = []
        self.parameter_pointers: Any = None
        self.packed = allocate(self.library.impala_packed_floats(channels))
        self.scratch = torch.empty(0)
        self.scratch_samples = -1
        self.inference_places: dict[int, torch.Tensor] = {}
        self.free_places: dict[int, list[torch.Tensor]] = {}
        self.reserve(0)

    def reserve(self, num_samples: int) -> None:
        if num_samples > self.scratch_samples:
            self.scratch = allocate(self.library.impala_scratch_floats(num_samples, self.channels))
            self.scratch_samples = num_samples
            self.library.impala_prepare_scratch(self.scratch.data_ptr(), num_samples, self.channels)

    def load(self, parameters: Sequence[torch.Tensor], *, training: bool = False) -> None:
        """Transforms the weights; biases and the linear layer are read in place, so the tensors must stay as they are until the next load."""
        self.check(parameters)
        self.parameters = [parameter.detach() for parameter in parameters]
        self.parameter_pointers = pointers_to(self.parameters)
        self.library.impala_pack(
            self.parameter_pointers,
            self.channels,
            int(training),
            self.packed.data_ptr(),
            self.scratch.data_ptr(),
        )

    def features(self, observation: torch.Tensor) -> torch.Tensor:
        num_samples = self.check_observation(observation)
        if num_samples not in self.inference_places:
            self.inference_places[num_samples] = allocate(self.library.impala_saved_floats(num_samples, 0))
        return self.run_forward(observation, self.inference_places[num_samples], keep=False)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(features, activations); hand the activations to `backward`, which takes them back for the next call."""
        num_samples = self.check_observation(observation)
        free = self.free_places.setdefault(num_samples, [])
        place = free.pop() if free else allocate(self.library.impala_saved_floats(num_samples, 1))
        return self.run_forward(observation, place, keep=True), place

    def backward(
        self,
        observation: torch.Tensor,
        features: torch.Tensor,
        activations: torch.Tensor,
        features_gradient: torch.Tensor,
        gradients: Sequence[torch.Tensor],
    ) -> None:
        """Overwrites `gradients`; after `forward` of the same observation, with the same parameters loaded for training."""
        num_samples = self.check_observation(observation)
        self.check(gradients)
        assert features.shape == features_gradient.shape == (num_samples, NUM_FEATURES)
        assert (
            features.is_contiguous()
            and features_gradient.is_contiguous()
            and features_gradient.dtype == torch.float32
        )
        self.library.impala_backward(
            observation.data_ptr(), num_samples, self.channels, self.parameter_pointers, self.packed.data_ptr(), activations.data_ptr(),
            self.scratch.data_ptr(), features.data_ptr(), features_gradient.data_ptr(), pointers_to(gradients),
        )  # fmt: skip
        self.free_places[num_samples].append(activations)

    def trunk(self, observation: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        if not (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)):
            self.load([parameter.contiguous() for parameter in parameters])
            return self.features(observation)
        return TrunkFunction.apply(self, observation, *parameters)

    def run_forward(self, observation: torch.Tensor, place: torch.Tensor, *, keep: bool) -> torch.Tensor:
        assert self.parameters, "load the parameters first"
        num_samples = len(observation)
        self.reserve(num_samples)
        features = torch.empty(num_samples, NUM_FEATURES)
        self.library.impala_forward(
            observation.data_ptr(), num_samples, self.channels, self.parameter_pointers, self.packed.data_ptr(), int(keep),
            place.data_ptr(), self.scratch.data_ptr(), features.data_ptr(),
        )  # fmt: skip
        return features

    def check_observation(self, observation: torch.Tensor) -> int:
        assert observation.shape[1:] == (IMAGE_SIZE, IMAGE_SIZE, self.channels), tuple(observation.shape)
        assert observation.dtype == torch.uint8 and observation.is_contiguous() and len(observation) > 0
        return len(observation)

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        assert len(tensors) == len(self.shapes), len(tensors)
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            assert tensor.shape == shape and tensor.dtype == torch.float32 and tensor.is_contiguous(), (
                tuple(tensor.shape),
                shape,
            )


class TrunkFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, native: NativeImpala, observation: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        parameters = tuple(parameter.contiguous() for parameter in parameters)
        native.load(parameters, training=True)
        features, ctx.activations = native.forward(observation)
        ctx.native = native
        ctx.save_for_backward(observation, features, *parameters)
        return features

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.activations is None:
            raise RuntimeError(
                "the trunk's activations were already used by a backward pass; run forward again"
            )
        observation, features, *parameters = ctx.saved_tensors
        native: NativeImpala = ctx.native
        if pointers_differ(native.parameters, parameters):
            native.load(parameters, training=True)
        gradients = [torch.empty_like(parameter) for parameter in parameters]
        native.backward(observation, features, ctx.activations, output_gradients[0].contiguous(), gradients)
        ctx.activations = None
        return (None, None, *gradients)


def pointers_differ(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return any(a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))
