"""The interface of a network: how it acts and how it is differentiated.

`autograd.py` computes any policy, `stacked_mlp.py` MLPs, `native_mlp.py` and `native_cnn.py` use our own kernels.
B samples, A action components, K outputs, V values.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor


class Output(NamedTuple):
    """The outputs of a policy, or (as `OutputGradient`) the derivatives of a loss by them."""

    action: Tensor  # [B, K] logits, or means
    log_std: Tensor | None  # [K] of a Gaussian head
    values: Tensor  # [B, V] of rewards and, if it has a value head, of curiosity

    @property
    def value(self) -> Tensor:
        """[B]"""
        return self.values[:, 0]


OutputGradient = Output


class Acted(NamedTuple):
    action: np.ndarray  # [B, A]
    log_prob: np.ndarray  # [B]
    values: np.ndarray  # [B, V]


class Past(NamedTuple):
    """The memory of a recurrent policy before the first of T steps, and the steps that start an episode without it."""

    state: np.ndarray  # [B, S] float32; acting and inference leave the state after the last step here
    starts: np.ndarray  # [T, B] uint8

    def copy(self) -> "Past":
        return Past(self.state.copy(), self.starts)


class Sequences(NamedTuple):
    """The observation of a recurrent network: T steps of B sequences, step by step. DrAC appends the same sequences,
    augmented.
    """

    observation: Any  # [T * B, ...], or [2 * T * B, ...]
    state: Tensor  # as in `Past`
    starts: Tensor

    def by_step(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features [T * N, F], state [N, S] and starts [T, N] of all N sequences, those of DrAC included."""
        copies, (steps, width) = self.copies(features), self.starts.shape
        if copies == 1:
            return features, self.state, self.starts
        turned = features.view(copies, steps, width, -1).transpose(0, 1).reshape(features.shape)
        return turned, self.state.repeat(copies, 1), self.starts.repeat(1, copies)

    def as_given(self, rows: Tensor) -> Tensor:
        """Rows of `by_step` in the order of the observation."""
        copies, (steps, width) = self.copies(rows), self.starts.shape
        if copies == 1:
            return rows
        return rows.view(steps, copies, width, -1).transpose(0, 1).reshape(rows.shape)

    def copies(self, rows: Tensor) -> int:
        return len(rows) // self.starts.numel()


class Network(Protocol):
    """`observation` comes from `Actor.prepared`. A recurrent network reads `Sequences`; `act` and `infer` overwrite their
    state with the one after the last step.
    """

    takes_loss_gradient: bool  # use the algorithm's `loss_gradient` instead of differentiating its `loss`

    def begin_inference(self) -> None:
        """Must be called before `act` and `infer` if the parameters may have changed."""

    def begin_step(self, step: tuple[int, ...]) -> None:
        """Must be called before `forward` of each microbatch; the parameters are those of this optimizer step."""

    def act(self, observation: Any, noise: np.ndarray) -> Acted: ...

    def infer(self, observation: Any) -> Output:
        """Without gradients."""

    def forward(self, observation: Any) -> Output:
        """Keeps what `backward` needs."""

    def backward(self, gradient: OutputGradient, into: Any) -> None:
        """Writes every parameter's gradient for the last `forward`; `into` comes from `gradient_views`."""

    def gradient_views(self, flat: Tensor) -> Any:
        """The gradients of all parameters in a flat vector."""
