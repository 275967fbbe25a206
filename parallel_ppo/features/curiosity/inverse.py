"""Inverse dynamics: which action led from one observation to the next? Features that answer this know what
the agent can influence, and nothing else. B samples, A action components, K outputs, F features.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parallel_ppo.envs.contract import ActionSpec
from parallel_ppo.features.curiosity.model import CollectedColumns
from parallel_ppo.features.curiosity.whitening import Whitening
from parallel_ppo.kernels.native import row_sums
from parallel_ppo.policies import head_derivatives

HIDDEN = 256


def encoded_action(spec: ActionSpec, action: Tensor) -> Tensor:
    """[B, A] -> [B, K]: choices as ones among zeros."""
    if spec.kind != "categorical":
        return action
    chosen = action.long().unbind(1)
    ones = [functional.one_hot(index, size) for index, size in zip(chosen, spec.sizes, strict=True)]
    return torch.cat(ones, 1).to(torch.float32)


def inverse_loss(spec: ActionSpec, outputs: Tensor, action: Tensor) -> Tensor:
    """[B]: how badly the outputs [B, K] name the action; half the squared error where it is continuous."""
    if spec.kind == "gaussian":
        return 0.5 * row_sums((outputs - action).square())
    return -_LogProb.apply(spec, outputs, action)


class _LogProb(torch.autograd.Function):
    """[B]"""

    @staticmethod
    def forward(context: Any, spec: ActionSpec, outputs: Tensor, action: Tensor) -> Tensor:
        found = head_derivatives.differentiate(spec, outputs.detach().numpy(), None, action.numpy())
        context.save_for_backward(torch.from_numpy(found.log_prob_by_output))
        return torch.from_numpy(found.log_prob)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        (by_output,) = context.saved_tensors
        return None, slopes[0][:, None] * by_output, None


def features_of(encode: torch.nn.Module, whiten: Whitening, columns: CollectedColumns) -> np.ndarray:
    """The features of every observation of a slice's rollout, [T + 1, n, F]."""
    num_rows, num_envs = columns.episode_start.shape
    found = [encode(whiten(columns.rows(steps))) for steps in columns.pieces(num_rows)]
    return torch.cat(found).numpy().reshape(num_rows, num_envs, -1)


def both_features(
    encode: torch.nn.Module, whiten: Whitening, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """Encodes both in one batch."""
    here, there = encode(whiten(torch.cat((before, after)))).chunk(2)
    return here, there
