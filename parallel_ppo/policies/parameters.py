"""A policy's parameters as one flat vector: layout, hash and initial values.

Initial weights come from keyed NumPy draws on one thread, so they depend on the seed alone.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

from parallel_ppo.kernels import numerics
from parallel_ppo.keyed import generator, integer_seed
from parallel_ppo.policies.policy import Policy
from parallel_ppo.storage.array_files import bytes_of

ALIGNMENT = 16  # floats: every parameter starts on a cache line
LARGE = 1 << 24  # parameters: drawing and saving them takes a while
GAINS = {"action_head.weight": 0.01, "value_head.weight": 1.0} | {
    f"{cell}.{weight}_weight": 1.0 for cell in ("cell", "value_cell") for weight in ("input", "recurrent")
}


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def num_flat(policy: nn.Module) -> int:
    return sum(_aligned(parameter.numel()) for parameter in policy.parameters())


def views(policy: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """Each parameter as a view of a flat vector, by name."""
    result, offset = {}, 0
    for name, parameter in policy.named_parameters():
        result[name] = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += _aligned(parameter.numel())
    return result


def bind(policy: nn.Module, flat: Tensor) -> None:
    """Makes the policy's parameters views of `flat`."""
    for name, view in views(policy, flat).items():
        policy.get_parameter(name).data = view


def sha256(policy: nn.Module, flat: Tensor) -> str:
    """Hashes names, shapes and float32 bytes in the order of names."""
    digest = hashlib.sha256()
    for name, view in sorted(views(policy, flat).items()):
        digest.update(f"{name}{tuple(view.shape)}".encode())
        digest.update(bytes_of(view.numpy()))
    return digest.hexdigest()


# --- initial weights ----------------------------------------------------------------------------------------


def initialize(policy: Policy, flat: Tensor, seed: int) -> None:
    """Heads are orthogonal with gains 0.01 and 1, cells with 1, and `NetworkKind.initial` decides for trunks,
    unless `training.initialization` is fan_in.
    """
    flat.zero_()
    own: dict[str, Tensor] = {}
    if policy.kind.initial == "own":
        trunk = policy.drawn_trunk(integer_seed(seed, "initial trunk"))
        own = {f"trunk.{name}": parameter.detach() for name, parameter in trunk.named_parameters()}
    for index, (name, view) in enumerate(views(policy, flat).items()):
        draws = generator(seed, "initial", index)
        if name == "log_std":
            view.fill_(policy.initial_log_std)
        elif name in own:
            view.copy_(own[name])
        elif policy.draws_by_fan_in(name):
            fan_in = policy.get_parameter(name.replace("bias", "weight"))[0].numel()
            drawn = (2 * draws.random(tuple(view.shape)) - 1) * (1 / math.sqrt(fan_in))
            view.copy_(torch.from_numpy(drawn.astype(np.float32)))
        elif name.endswith("weight"):
            gain = GAINS.get(name, math.sqrt(2))
            view.copy_(torch.from_numpy(orthogonal(tuple(view.shape), gain, draws)))


def orthogonal(shape: tuple[int, ...], gain: float, draws: np.random.Generator) -> np.ndarray:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    vectors = numerics.orthonormal(numerics.standard_normal(draws, (min(rows, columns), max(rows, columns))))
    return (gain * (vectors.T if rows >= columns else vectors)).reshape(shape).astype(np.float32)
