"""A policy that acts: used by workers, evaluation, films and loaded policies. B rows of the rollout, K choices."""

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads, own_network
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.native_cnn import NativeCnn
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.policies.network import Acted, Network, Output
from parallel_ppo.policies.parameters import bind
from parallel_ppo.policies.policy import Policy, Preparation
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.policies.trunks import Mlp
from parallel_ppo.settings.schema import Settings

TRIAL_ROWS = 4


class Actor:
    def __init__(
        self, settings: Settings, spec: EnvSpec, parameters: Tensor, mean: Tensor, scale: Tensor
    ) -> None:
        """`parameters` is the policy's flat vector. It, `mean` and `scale` may change between uses."""
        self.spec, self.parameters, self.policy = spec, parameters, Policy(settings, spec)
        self.tensors = parameters, mean, scale
        bind(self.policy, parameters)
        self.network = _network(settings, self.policy, parameters)
        self.is_fresh = False
        reads_bytes = isinstance(self.network, NativeCnn)
        self.prepare = Tensor.contiguous if reads_bytes else Preparation(settings, spec, mean, scale)

    def refresh(self) -> None:
        """Must be called before the first use and after each change of the parameters."""
        self.network.begin_inference()
        self.is_fresh = True

    def act(self, rows: np.ndarray, noise: np.ndarray, mask: np.ndarray | None = None) -> Acted:
        """`mask` [B, K] is 1 for each allowed choice."""
        if mask is None:
            assert self.is_fresh, "Actor.refresh() comes first"
            return self.network.act(self.prepare(torch.from_numpy(rows)), noise)
        return heads.acted(self.spec.action, self._masked(rows, mask), noise)

    def most_likely(self, rows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        return heads.mode(self.spec.action, self._masked(rows, mask).action).numpy()

    def _masked(self, rows: np.ndarray, mask: np.ndarray | None) -> Output:
        return heads.masked(self.infer(rows), None if mask is None else torch.from_numpy(mask))

    def value(self, rows: np.ndarray) -> np.ndarray:
        return self.infer(rows).value.numpy()

    def infer(self, rows: np.ndarray) -> Output:
        assert self.is_fresh, "Actor.refresh() comes first"
        return self.network.infer(self.prepare(torch.from_numpy(rows)))

    def draw_noise(self, draws: np.random.Generator, *shape: int) -> np.ndarray:
        return heads.draw_noise(self.spec.action, draws, *shape)


def check_network(settings: Settings, spec: EnvSpec, policy: Policy) -> None:
    """Tries a network of the user on random observations; ours are known to be exact."""
    if policy.kind.initial != "own":
        return
    draws = generator(0, "trial observation")
    rows = draws.integers(0, 256, (TRIAL_ROWS, *spec.observation_shape)).astype(spec.observation_dtype)
    if spec.vector_shape:
        spec.vectors(rows)[...] = draws.standard_normal((TRIAL_ROWS, *spec.vector_shape), np.float32)
    observation = Preparation(settings, spec, torch.zeros(()), torch.ones(()))(torch.from_numpy(rows))
    own_network.check(settings.training.policy, policy.trunk, observation, policy.drawn_trunk)


def _network(settings: Settings, policy: Policy, parameters: Tensor) -> Network:
    is_native = settings.training.kernels == "native"
    if isinstance(policy.trunk, Mlp) and policy.value_trunk is not None:
        return NativeMlp(policy, parameters) if is_native else StackedMlp(policy, parameters)
    if is_native:
        return NativeCnn(policy, parameters, settings.training.policy, settings.training.width)
    return AutogradNetwork(policy)
