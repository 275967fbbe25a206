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


class Network(Protocol):
    """`observation` comes from `Actor.prepare`."""

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
