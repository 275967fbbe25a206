"""What a worker knows of a network: how it acts, and how it is differentiated. B samples, A action
components, K outputs, V values.

Four ways to compute one: `autograd.py` (any policy), `stacked_mlp.py` (MLPs), `native_mlp.py` and
`native_cnn.py` (on our own kernels).
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor


class Output(NamedTuple):
    """What a policy says of observations, and (as `OutputGradient`) the derivatives of a loss in just
    these numbers.
    """

    action: Tensor  # [B, K] logits, or means
    log_std: Tensor | None  # [K] of a Gaussian head
    values: Tensor  # [B, V] of the rewards, and of curiosity's where these have a value head

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
    """`observation` is what `Actor.prepare` makes of rows of the rollout."""

    takes_loss_gradient: bool  # the derivative that an algorithm writes out, not that of its `loss`

    def begin_inference(self) -> None:
        """The parameters may have changed: to be called before `act` and `infer`."""

    def begin_step(self, step: tuple[int, ...]) -> None:
        """The parameters of this optimizer step, for `forward` and `backward`; called once for each microbatch."""

    def act(self, observation: Any, noise: np.ndarray) -> Acted: ...

    def infer(self, observation: Any) -> Output:
        """Without gradients."""

    def forward(self, observation: Any) -> Output:
        """Keeps what `backward` needs."""

    def backward(self, gradient: OutputGradient, into: Any) -> None:
        """Overwrites every parameter's gradient, of the last `forward`. `into` is what `gradient_views`
        made.
        """

    def gradient_views(self, flat: Tensor) -> Any:
        """Where the gradients lie in a flat vector."""
