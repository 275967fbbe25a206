"""A policy: trunk(s), an action head and a value head, over one flat parameter vector.

Initial weights come from keyed NumPy draws on one thread, so they depend on the seed alone.
"""

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.kernels.native import NativeTrunk
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads
from parallel_ppo.policies.impala import Impala
from parallel_ppo.policies.mixed import Mixed
from parallel_ppo.policies.mlp import Mlp
from parallel_ppo.policies.nature import Nature
from parallel_ppo.settings.schema import Settings

ALIGNMENT = 16  # floats: every parameter starts on a cache line, in every process alike


class Output(NamedTuple):
    action: Tensor  # [B, K] logits, or means
    log_std: Tensor | None  # [K] of a Gaussian head
    value: Tensor  # [B]


class Policy(nn.Module):
    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        self.normalizes = settings.training.normalize_observations
        kind = settings.training.policy
        self.trunk = _trunk(kind, settings, spec)
        self.value_trunk = _trunk(kind, settings, spec) if kind == "mlp" else None
        self.action_head = nn.Linear(self.trunk.num_features, heads.num_outputs(spec.action))
        self.value_head = nn.Linear(self.trunk.num_features, 1)
        self.native = (
            NativeTrunk(kind, spec.observation_shape[2]) if settings.training.kernels == "native" else None
        )
        self.packed_for: tuple[int, ...] | None = None
        is_gaussian = spec.action.kind == "gaussian"
        self.log_std = nn.Parameter(torch.zeros(spec.action.sizes[0])) if is_gaussian else None

    def forward(self, observation: Any) -> Output:
        """`observation` as `prepare` returns it. Without gradients, `pack` must have been called since the parameters changed."""
        features = self.trunk(observation) if self.native is None else self.native.features(observation)
        value_features = features if self.value_trunk is None else self.value_trunk(observation)
        return Output(self.action_head(features), self.log_std, self.value_head(value_features).squeeze(1))

    def pack(self, step: tuple[int, ...] | None = None) -> None:
        """Lays the weights out: for inference, or for the kernels' gradients of an optimizer step, once for all its lanes."""
        if step is None:
            for module in self.modules():
                if isinstance(module, Nature):
                    module.forget()
        if self.native is not None and (step is None or step != self.packed_for):
            self.native.load(list(self.trunk.parameters()), training=step is not None)
            self.packed_for = step

    def prepare(self, rows: Tensor, mean: Tensor, scale: Tensor, clip: float) -> Any:
        """Rows of the slab -> what the network reads: images in channels-last float, vectors normalised, or a list of both."""
        if self.native is not None:
            return rows.contiguous()
        if not self.spec.parts:
            return _image(rows) if self.spec.is_image else self._vector(rows, mean, scale, clip)
        parts = []
        for part in self.spec.parts:
            columns = rows[:, part.offset : part.end]
            if part.is_image:
                parts.append(_image(columns.reshape(-1, *part.shape)))
            else:
                parts.append(self._vector(columns.view(torch.float32), mean, scale, clip))
        return parts

    def _vector(self, rows: Tensor, mean: Tensor, scale: Tensor, clip: float) -> Tensor:
        return ((rows - mean) * scale).clamp_(-clip, clip) if self.normalizes else rows


def _image(rows: Tensor) -> Tensor:
    return rows.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255)


def _trunk(kind: str, settings: Settings, spec: EnvSpec) -> Impala | Nature | Mlp | Mixed:
    hidden = list(settings.training.hidden_sizes)
    if kind == "mlp":
        return Mlp(spec.observation_shape[0], hidden)
    network = Impala if kind == "impala" else Nature
    if spec.parts:
        return Mixed(
            network, spec.image_shapes, Mlp(spec.vector_shape[0], hidden) if spec.vector_shape else None
        )
    return network(*spec.observation_shape)


# --- the flat vector ------------------------------------------------------------------------------------------------------


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def num_flat(policy: Policy) -> int:
    return sum(_aligned(parameter.numel()) for parameter in policy.parameters())


def views(policy: Policy, flat: Tensor) -> dict[str, Tensor]:
    """Each parameter's place in a flat vector, by name."""
    result, offset = {}, 0
    for name, parameter in policy.named_parameters():
        result[name] = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += _aligned(parameter.numel())
    return result


def bind(policy: Policy, flat: Tensor) -> None:
    """Let the policy's parameters live in `flat`."""
    for name, view in views(policy, flat).items():
        policy.get_parameter(name).data = view


def sha256(policy: Policy, flat: Tensor) -> str:
    """Over names, shapes and contiguous float32 bytes in name order."""
    digest = hashlib.sha256()
    for name, view in sorted(views(policy, flat).items()):
        digest.update(f"{name}{tuple(view.shape)}".encode())
        digest.update(view.contiguous().numpy().tobytes())
    return digest.hexdigest()


# --- initial weights ------------------------------------------------------------------------------------------------------


def initialise(policy: Policy, flat: Tensor, seed: int) -> None:
    flat.zero_()
    for index, (name, view) in enumerate(views(policy, flat).items()):
        if name.endswith("weight"):
            draws = generator(seed, "initial", index)
            view.copy_(torch.from_numpy(_weights(policy, name, tuple(view.shape), draws)))
        elif _in_impala(policy, name):
            bound = 1 / math.sqrt(_fan_in(policy, name.replace("bias", "weight")))
            view.copy_(
                torch.from_numpy(
                    generator(seed, "initial", index).uniform(-bound, bound, view.shape).astype(np.float32)
                )
            )


def _in_impala(policy: Policy, name: str) -> bool:
    return any(
        name.startswith(f"{prefix}.")
        for prefix, module in policy.named_modules()
        if isinstance(module, Impala)
    )


def _fan_in(policy: Policy, name: str) -> int:
    return policy.get_parameter(name)[0].numel()


def _weights(policy: Policy, name: str, shape: tuple[int, ...], draws: np.random.Generator) -> np.ndarray:
    """Heads are orthogonal with gains 0.01 and 1. IMPALA's trunk is uniform by fan-in, the others' orthogonal with gain sqrt(2)."""
    if name == "action_head.weight":
        return _orthogonal(shape, 0.01, draws)
    if name == "value_head.weight":
        return _orthogonal(shape, 1.0, draws)
    if _in_impala(policy, name):
        bound = 1 / math.sqrt(_fan_in(policy, name))
        return draws.uniform(-bound, bound, shape).astype(np.float32)
    return _orthogonal(shape, math.sqrt(2), draws)


def _orthogonal(shape: tuple[int, ...], gain: float, draws: np.random.Generator) -> np.ndarray:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    normal = draws.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diag(r))
    return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)
