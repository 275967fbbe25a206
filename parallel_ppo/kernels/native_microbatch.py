"""The gradient of a microbatch of PPO with MLPs as one call (`microbatch.c`), which gathers the samples from the rollout."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.kernels.api import load_library, structure
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.kernels.native import allocate

COLUMNS = "observation", "action", "log_prob", "value", "advantage", "target_return"


class MicrobatchLoss(NamedTuple):
    """The settings of PPO's loss."""

    value_coef: float
    entropy_coef: float
    batch_size: int
    clips_value: bool


class NativeMicrobatch:
    """For one process. Reads all arguments in place, at every call."""

    def __init__(
        self,
        network: int,
        offsets: Sequence[int],
        log_std_offset: int | None,
        loss: MicrobatchLoss,
        normalization: tuple[torch.Tensor, torch.Tensor, float] | None,
        largest_microbatch: int,
    ) -> None:
        """`network` is the address of a structure `mlp`, the offsets those of its parameters in a flat
        vector. `normalization` of the observations: mean, scale and clip.
        """
        self.library = load_library(choose_variant())
        self.offsets = np.array(offsets, np.int64)
        mean, scale, clip = normalization or (None, None, 0.0)
        self.kept = mean, scale
        self.settings = structure("microbatch_settings")(
            network=network,
            value_coef=loss.value_coef,
            entropy_coef=loss.entropy_coef,
            batch_size=loss.batch_size,
            clips_value=loss.clips_value,
            num_offsets=len(offsets),
            log_std_offset=-1 if log_std_offset is None else log_std_offset,
            offsets=self.offsets.ctypes.data,
            normalizes=normalization is not None,
            observation_mean=None if mean is None else mean.data_ptr(),
            observation_scale=None if scale is None else scale.data_ptr(),
            observation_clip=clip,
        )
        self.address = ctypes.addressof(self.settings)
        self.scratch = allocate(self.library.microbatch_scratch_floats(self.address, largest_microbatch))
        self.settings.scratch = self.scratch.data_ptr()

    def gradient(
        self,
        rollout: "RolloutColumns",
        rows: np.ndarray,
        scalars: Sequence[float],
        gradient: np.ndarray,
        statistics: np.ndarray,
    ) -> None:
        """Overwrites the gradient, a flat vector, and the statistics, both rows of their arrays."""
        assert rows.dtype == np.int64 and rows.flags.c_contiguous and len(scalars) == 3
        self.library.microbatch_gradient(
            self.address,
            rollout.address,
            rows.ctypes.data,
            len(rows),
            (ctypes.c_double * 3)(*scalars),
            gradient.ctypes.data,
            statistics.ctypes.data,
        )


class RolloutColumns:
    """The addresses of a rollout's columns."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        """The sampled columns [T * E, ...], float32."""
        self.columns = [columns[name] for name in COLUMNS]
        assert all(column.dtype == torch.float32 and column.is_contiguous() for column in self.columns)
        self.pointers = structure("rollout_columns")(*(column.data_ptr() for column in self.columns))
        self.address = ctypes.addressof(self.pointers)
