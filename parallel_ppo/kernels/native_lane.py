"""The gradient of a lane of PPO with MLPs as one call (`lane.c`): its samples are gathered from the slab, and
no array is made on the way.

T steps, E envs, B samples, K outputs.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import allocate, load_library
from parallel_ppo.kernels.numpy_loops import NumpyFunction, float_loop

SLAB = "observation", "action", "log_prob", "value", "advantage", "target_return"
_integer, _pointer, _number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class _Settings(ctypes.Structure):
    """`lane_settings`, which begins with `ppo_settings`."""

    _fields_ = (
        ("exp", NumpyFunction), ("log", NumpyFunction), ("add", NumpyFunction), ("matmul", NumpyFunction),
        ("outputs", _integer), ("components", _integer), ("choices", _pointer), ("log_std", _pointer),
        ("value_coef", _number), ("entropy_coef", _number), ("batch_size", _number),
        ("clips_value", _integer),
        ("layers", _integer), ("num_offsets", _integer), ("log_std_offset", _integer),
        ("sizes", _pointer), ("offsets", _pointer), ("parameters", _pointer),
        ("packed", _pointer), ("scratch", _pointer), ("normalizes", _integer),
        ("observation_mean", _pointer), ("observation_scale", _pointer), ("observation_clip", _number),
    )  # fmt: skip


class _Slab(ctypes.Structure):
    _fields_ = tuple((name, _pointer) for name in SLAB)


class LaneShape(NamedTuple):
    """The two MLPs and their head."""

    sizes: Sequence[int]  # inputs and each layer's hidden units
    offsets: Sequence[int]  # of each parameter in a flat vector, in the order of `mlp.c`
    num_outputs: int
    choices: Sequence[int]  # sizes of categorical components; empty: a Gaussian
    log_std_offset: int | None


class LaneLoss(NamedTuple):
    """What PPO's loss depends on for a whole run."""

    value_coef: float
    entropy_coef: float
    batch_size: int
    clips_value: bool


class NativeLane:
    """For one process. Everything that is handed over stays where it is and is read in place."""

    def __init__(
        self,
        shape: LaneShape,
        loss: LaneLoss,
        parameters: torch.Tensor,
        packed: torch.Tensor,
        normalisation: tuple[torch.Tensor, torch.Tensor, float] | None,
        largest_lane: int,
    ) -> None:
        """`packed` are the weights as `NativeMlp.load` lays them out. `normalisation` of the observations:
        mean, scale and clip.
        """
        self.library = _library(choose_variant())
        self.sizes = np.array(shape.sizes, np.int32)
        self.offsets, self.choices = np.array(shape.offsets, np.int64), np.array(shape.choices, np.int32)
        layers = len(shape.sizes) - 1
        assert len(self.offsets) == 4 * layers + 4 and parameters.is_contiguous()
        mean, scale, clip = normalisation or (None, None, 0.0)
        self.kept = parameters, packed, mean, scale
        at = -1 if shape.log_std_offset is None else shape.log_std_offset
        self.settings = _Settings(
            *(float_loop(function) for function in (np.exp, np.log, np.add, np.matmul)),
            shape.num_outputs, len(self.choices), self.choices.ctypes.data,
            None if at < 0 else parameters.data_ptr() + 4 * at,
            loss.value_coef, loss.entropy_coef, loss.batch_size, loss.clips_value,
            layers, len(self.offsets), at, self.sizes.ctypes.data, self.offsets.ctypes.data,
            parameters.data_ptr(), packed.data_ptr(), None, normalisation is not None,
            None if mean is None else mean.data_ptr(), None if scale is None else scale.data_ptr(), clip,
        )  # fmt: skip
        self.address = ctypes.addressof(self.settings)
        self.scratch = allocate(self.library.lane_scratch_floats(self.address, largest_lane))
        self.settings.scratch = self.scratch.data_ptr()

    def gradient(
        self,
        slab: "LaneSlab",
        rows: np.ndarray,
        scalars: Sequence[float],
        gradient: np.ndarray,
        statistics: np.ndarray,
    ) -> None:
        """Overwrites the gradient, a flat vector, and the statistics, both rows of their arrays."""
        assert rows.dtype == np.int64 and rows.flags.c_contiguous and len(scalars) == 3
        self.library.lane_gradient(
            self.address, slab.address, rows.ctypes.data, len(rows), (_number * 3)(*scalars),
            gradient.ctypes.data, statistics.ctypes.data,
        )  # fmt: skip


class LaneSlab:
    """Where a rollout's columns lie."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        """The sampled columns [T * E, ...], float32."""
        self.columns = [columns[name] for name in SLAB]
        assert all(column.dtype == torch.float32 and column.is_contiguous() for column in self.columns)
        self.pointers = _Slab(*(column.data_ptr() for column in self.columns))
        self.address = ctypes.addressof(self.pointers)


def _library(variant: str) -> ctypes.CDLL:
    library, pointer = load_library(variant), ctypes.c_void_p
    library.lane_scratch_floats.restype = ctypes.c_size_t
    library.lane_scratch_floats.argtypes = [pointer, ctypes.c_int]
    library.lane_gradient.restype = None
    library.lane_gradient.argtypes = [*[pointer] * 3, ctypes.c_int, *[pointer] * 3]
    return library
