"""The kernels as Python calls them: flat vectors, a network's trunk for images, heads, linear layers.

Shapes: B samples, C image channels; an observation is uint8 [B, height, width, C], features are float32
[B, 128, 256 or 512] (after the last ReLU). For a given batch shape the result is the same bits on every call,
in every process and for every instruction set. MLPs are in `policies/native_mlp.py`.
"""

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from parallel_ppo.kernels import numerics
from parallel_ppo.kernels.api import constant, load_library, structure
from parallel_ppo.kernels.choice import choose_variant, unsuitable

IMPALA_WIDTHS = (16, 32, 32)
SMALL_IMAGE_CHANNELS, SMALL_IMAGE_KINDS, SMALL_IMAGE_LARGEST_MAP = 16, 16, 8  # as in small_image.c
LINEAR_UNIT = 64  # inputs and outputs of a linear layer are multiples of it, as the kernels see them


def parameter_shapes(network: str, shape: Sequence[int], factor: int = 1) -> list[tuple[int, ...]]:
    """The trunk's parameters in the order of every list of parameters or gradients here; torch's layouts.
    `shape` is that of an image.
    """
    if network == "small_image":
        return _small_image_shapes(*shape)
    convolutions: list[tuple[int, int, int, int]] = []
    side, _, channels = shape
    if network == "nature":
        convolutions = [(32, channels, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
        for size, stride in ((8, 4), (4, 2), (3, 1)):
            side = (side - size) // stride + 1
        last = (512, 64 * side**2)
    else:
        for width in IMPALA_WIDTHS:
            width, side = width * factor, (side + 1) // 2
            convolutions += [(width, inputs, 3, 3) for inputs in (channels, width, width, width, width)]
            channels = width
        last = (256, channels * (1 if network == "impoola" else side**2))
    return _with_biases(*convolutions, last)


def _small_image_shapes(height: int, width: int, channels: int) -> list[tuple[int, ...]]:
    units, num_convolutions = SMALL_IMAGE_CHANNELS, 1
    while max(height, width) > SMALL_IMAGE_LARGEST_MAP:
        height, width, num_convolutions = (height + 1) // 2, (width + 1) // 2, num_convolutions + 1
    convolutions = [(units, units, 3, 3)] * num_convolutions
    kinds = _with_biases((units, channels * SMALL_IMAGE_KINDS))
    return [*kinds, (units, channels), *_with_biases(*convolutions, (128, height * width * units))]


def _with_biases(*weights: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [shape for weight in weights for shape in (weight, weight[:1])]


# --- memory ----------------------------------------------------------------------------------------------------


def allocate(num_floats: int) -> torch.Tensor:
    """Zeros of this process only (a fork gets its own copy), on huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, max(num_floats, 1) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.float32, count=num_floats))


def new_floats(*shape: int) -> torch.Tensor:
    """For the kernels to fill, whatever type and device the program that loaded a policy made its default."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def pointers_to(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def address_of(array: np.ndarray) -> int:
    """The address of a writable, contiguous array, in a third of the time of `array.ctypes.data`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


# --- flat vectors ----------------------------------------------------------------------------------------------


def tree_sum(vectors: torch.Tensor, out: torch.Tensor) -> float:
    """`ppo.tree_sum` of the rows of `vectors`, bit for bit; returns the sum of its squares."""
    rows, count = vectors.shape
    assert out.shape == (count,) and count % 16 == 0 and vectors.stride(1) == out.stride(0) == 1
    library = load_library(choose_variant())
    return library.flat_tree_sum(vectors.data_ptr(), vectors.stride(0), rows, count, out.data_ptr())


def adam(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *numbers: float,
) -> None:
    """In place on flat vectors; the numbers in the order of `flat_adam`."""
    vectors, count = (parameters, gradient, first, second), len(parameters)
    assert count % 16 == 0 and all(v.shape == (count,) and v.is_contiguous() for v in vectors)
    load_library(choose_variant()).flat_adam(*(vector.data_ptr() for vector in vectors), count, *numbers)


def rmsprop(parameters: torch.Tensor, gradient: torch.Tensor, second: torch.Tensor, *numbers: float) -> None:
    """In place on flat vectors; the numbers in the order of `flat_rmsprop`."""
    vectors, count = (parameters, gradient, second), len(parameters)
    assert count % 16 == 0 and all(v.shape == (count,) and v.is_contiguous() for v in vectors)
    load_library(choose_variant()).flat_rmsprop(*(vector.data_ptr() for vector in vectors), count, *numbers)


def whiten(pixels: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, levels: float) -> torch.Tensor:
    """Rows of bytes [B, N], whitened, in bytes again (see `features/curiosity/whitening.py`)."""
    rows, count = pixels.shape
    assert pixels.dtype == torch.uint8 and mean.shape == scale.shape == (count,)
    assert all(tensor.is_contiguous() for tensor in (pixels, mean, scale))
    out = torch.empty_like(pixels)
    load_library(choose_variant()).flat_whiten(
        pixels.data_ptr(), rows, count, mean.data_ptr(), scale.data_ptr(), levels, out.data_ptr()
    )
    return out


def byte_sums(pixels: torch.Tensor) -> torch.Tensor:
    """Sums of the columns of [B, N] bytes, and of their squares: [2, N] float64, exact."""
    rows, count = pixels.shape
    assert pixels.dtype == torch.uint8 and pixels.is_contiguous()
    out = torch.empty(2, count, dtype=torch.float64)
    load_library(choose_variant()).flat_byte_sums(
        pixels.data_ptr(), rows, count, out[0].data_ptr(), out[1].data_ptr()
    )
    return out


# --- heads and linear layers -----------------------------------------------------------------------------------


class NativeHeads:
    """The action and the value head, [B, features] -> [B, K] and [B, V]; for categorical actions also their
    choice.
    """

    def __init__(self, weights: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Action weight and bias, value weight and bias: read in place at every call."""
        assert all(weight.is_contiguous() and weight.dtype == torch.float32 for weight in weights)
        self.library, self.weights = load_library(choose_variant()), list(weights)
        (self.num_outputs, self.num_features), self.num_values = weights[0].shape, len(weights[3])
        assert self.num_features % 16 == 0 and self.num_outputs == (sum(sizes) or self.num_outputs)
        addresses = (weight.data_ptr() for weight in weights)
        self.native = structure("heads")(self.num_features, self.num_outputs, self.num_values, *addresses)
        self.address = ctypes.addressof(self.native)
        self.sizes = np.array(sizes, np.int32)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.check(features)
        action, values = (
            new_floats(len(features), self.num_outputs),
            new_floats(len(features), self.num_values),
        )
        self.library.heads_forward(
            self.address, features.data_ptr(), len(features), action.data_ptr(), values.data_ptr()
        )
        return action, values

    def backward(
        self,
        features: torch.Tensor,
        by_action: torch.Tensor,
        by_values: torch.Tensor,
        gradients: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Overwrites the gradients; returns the derivative in the features."""
        self.check(features)
        assert by_action.shape == (len(features), self.num_outputs) and by_action.is_contiguous()
        assert by_values.shape == (len(features), self.num_values) and by_values.is_contiguous()
        assert by_action.dtype == by_values.dtype == torch.float32
        by_features = new_floats(*features.shape)
        self.library.heads_backward(
            self.address, features.data_ptr(), len(features), by_action.data_ptr(), by_values.data_ptr(),
            pointers_to(gradients), by_features.data_ptr(),
        )  # fmt: skip
        return by_features

    def act(self, features: torch.Tensor, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [B, A], log-probabilities [B] and values [B, V]."""
        self.check(features)
        samples, components = draws.shape
        assert len(features) == samples and components == len(self.sizes) and draws.flags.c_contiguous
        action, log_prob = np.empty((samples, components), np.float32), np.empty(samples, np.float32)
        values, logits = (
            np.empty((samples, self.num_values), np.float32),
            new_floats(samples, self.num_outputs),
        )
        self.library.heads_act(
            self.address,
            features.data_ptr(),
            samples,
            components,
            address_of(self.sizes),
            address_of(draws),
            logits.data_ptr(),
            address_of(action),
            address_of(log_prob),
            address_of(values),
        )
        return action, log_prob, values

    def check(self, features: torch.Tensor) -> None:
        assert features.shape[1:] == (self.num_features,) and features.is_contiguous()


class NativeLinear(nn.Linear):
    """[B, inputs] -> [B, outputs], through a ReLU where it is asked for. The kernels know multiples of
    LINEAR_UNIT: other sizes are filled up with zeros, which change no sum.
    """

    def __init__(self, num_inputs: int, num_outputs: int, *, relu: bool) -> None:
        super().__init__(num_inputs, num_outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        more_inputs, more_outputs = -self.in_features % LINEAR_UNIT, -self.out_features % LINEAR_UNIT
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if more_inputs or more_outputs:
            x = functional.pad(x, (0, more_inputs))
            weight = functional.pad(weight, (0, more_inputs, 0, more_outputs))
            bias = functional.pad(bias, (0, more_outputs))
        linear = _DifferentiableLinear.apply if torch.is_grad_enabled() else _linear_forward
        return linear(x.contiguous(), weight, bias, self.relu)[:, : self.out_features]


def _linear_forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    outputs, inputs = weight.shape
    out = x.new_empty(len(x), outputs)
    assert all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in (x, weight, bias))
    scratch = _linear_scratch(inputs, outputs, len(x))
    load_library(choose_variant()).linear_layer_forward(
        inputs,
        outputs,
        x.data_ptr(),
        len(x),
        weight.data_ptr(),
        bias.data_ptr(),
        relu,
        scratch.data_ptr(),
        out.data_ptr(),
    )
    return out


def _linear_scratch(inputs: int, outputs: int, num_samples: int) -> Tensor:
    return torch.empty(
        load_library(choose_variant()).linear_layer_scratch_floats(inputs, outputs, num_samples)
    )


class _DifferentiableLinear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        out = _linear_forward(x, weight, bias, relu)
        context.relu = relu
        context.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        x, weight, out = context.saved_tensors
        outputs, inputs = weight.shape
        slope, scratch = slopes[0].contiguous(), _linear_scratch(inputs, outputs, len(x))
        by_weight, by_bias, by_x = torch.empty_like(weight), weight.new_empty(outputs), torch.empty_like(x)
        load_library(choose_variant()).linear_layer_backward(
            inputs,
            outputs,
            x.data_ptr(),
            len(x),
            weight.data_ptr(),
            out.data_ptr(),
            slope.data_ptr(),
            context.relu,
            scratch.data_ptr(),
            by_weight.data_ptr(),
            by_bias.data_ptr(),
            by_x.data_ptr(),
        )
        return by_x, by_weight, by_bias, None


class _RowSums(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.shape = x.shape
        return torch.from_numpy(numerics.row_sums(x.detach().numpy()))

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        return slopes[0].reshape(-1, *[1] * (len(context.shape) - 1)).expand(context.shape)


def row_sums(x: Tensor) -> Tensor:
    """[R, ...] -> [R], differentiable; torch's sums depend on the CPU."""
    return _RowSums.apply(x)


# --- trunks ----------------------------------------------------------------------------------------------------


class NativeTrunk:
    """The trunk for one process. Memory is allocated at first use of a batch size and kept.

    Inference: `load(parameters)` after every change of the parameters, then `features(observation)` as
    often as needed. Training: `load(parameters, training=True)`, then `forward` and `backward`, which
    writes the gradients straight into their destination.
    """

    def __init__(
        self,
        network: str,
        shape: Sequence[int],
        variant: str | None = None,
        factor: float = 1,
    ) -> None:
        """`shape`: of an image, height, width and channels. `factor`: as `training.width`, times as many
        channels in every block of IMPALA and Impoola.
        """
        reason = unsuitable(network, shape, factor=factor)
        if reason:
            raise ValueError(reason)
        self.image = tuple(shape)
        self.shape = structure("network_shape")(constant(network.upper()), *shape, int(factor))
        self.variant = choose_variant(variant)
        self.library = load_library(self.variant)
        self.shapes = parameter_shapes(network, shape, int(factor))
        self.num_features = self.shapes[-1][0]
        self.parameters: list[torch.Tensor] = []
        self.parameter_pointers: Any = None
        self.packed = allocate(self.call("packed_floats"))
        self.scratch = new_floats(0)
        self.scratch_samples = -1
        self.inference_places: dict[int, torch.Tensor] = {}
        self.free_places: dict[int, list[torch.Tensor]] = {}
        self.reserve(0)

    def call(self, function: str, *arguments: Any) -> Any:
        return getattr(self.library, f"trunk_{function}")(ctypes.addressof(self.shape), *arguments)

    def reserve(self, num_samples: int) -> None:
        if num_samples > self.scratch_samples:
            self.scratch = allocate(self.call("scratch_floats", num_samples))
            self.scratch_samples = num_samples
            self.call("prepare_scratch", self.scratch.data_ptr(), num_samples)

    def load(self, parameters: Sequence[torch.Tensor], *, training: bool = False) -> None:
        """Transforms the weights; biases and the linear layer are read in place, so the tensors must stay
        as they are until the next load.
        """
        self.check(parameters)
        self.parameters = [parameter.detach() for parameter in parameters]
        self.parameter_pointers = pointers_to(self.parameters)
        self.call(
            "pack",
            self.parameter_pointers,
            int(training),
            self.packed.data_ptr(),
            self.scratch.data_ptr(),
        )

    def features(self, observation: torch.Tensor) -> torch.Tensor:
        num_samples = self.check_observation(observation)
        if num_samples not in self.inference_places:
            self.inference_places[num_samples] = allocate(self.call("saved_floats", num_samples, 0))
        return self.run_forward(observation, self.inference_places[num_samples], keep=False)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(features, activations); hand the activations to `backward`, which takes them back for the next
        call.
        """
        num_samples = self.check_observation(observation)
        free = self.free_places.setdefault(num_samples, [])
        place = free.pop() if free else allocate(self.call("saved_floats", num_samples, 1))
        return self.run_forward(observation, place, keep=True), place

    def backward(
        self,
        observation: torch.Tensor,
        features: torch.Tensor,
        activations: torch.Tensor,
        features_gradient: torch.Tensor,
        gradients: Sequence[torch.Tensor],
    ) -> None:
        """Overwrites `gradients`; after `forward` of the same observation, with the same parameters
        loaded for training.
        """
        num_samples = self.check_observation(observation)
        self.check(gradients)
        assert features.shape == features_gradient.shape == (num_samples, self.num_features)
        assert (
            features.is_contiguous()
            and features_gradient.is_contiguous()
            and features_gradient.dtype == torch.float32
        )
        self.call(
            "backward",
            observation.data_ptr(),
            num_samples,
            self.parameter_pointers,
            self.packed.data_ptr(),
            activations.data_ptr(),
            self.scratch.data_ptr(),
            features.data_ptr(),
            features_gradient.data_ptr(),
            pointers_to(gradients),
        )
        self.free_places[num_samples].append(activations)

    def run_forward(self, observation: torch.Tensor, place: torch.Tensor, *, keep: bool) -> torch.Tensor:
        assert self.parameters, "load the parameters first"
        num_samples = len(observation)
        self.reserve(num_samples)
        features = new_floats(num_samples, self.num_features)
        self.call(
            "forward",
            observation.data_ptr(),
            num_samples,
            self.parameter_pointers,
            self.packed.data_ptr(),
            int(keep),
            place.data_ptr(),
            self.scratch.data_ptr(),
            features.data_ptr(),
        )
        return features

    def check_observation(self, observation: torch.Tensor) -> int:
        assert observation.shape[1:] == self.image, tuple(observation.shape)
        assert observation.dtype == torch.uint8 and observation.is_contiguous() and len(observation) > 0
        return len(observation)

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        assert len(tensors) == len(self.shapes), len(tensors)
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            assert tensor.shape == shape and tensor.dtype == torch.float32 and tensor.is_contiguous(), (
                tuple(tensor.shape),
                shape,
            )
