"""A policy that acts: its network, what its observations are normalised with, and how an action is chosen.

The same for workers, evaluation, filming and whoever loads a policy. B rows of the rollout.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads, own_network
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.mlp import Mlp
from parallel_ppo.policies.native_cnn import NativeCnn
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.policies.network import Acted, Network, Output
from parallel_ppo.policies.parameters import bind
from parallel_ppo.policies.policy import Policy, Preparation
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.settings.schema import Settings

TRIAL_ROWS = 4


class NotRefreshed:
    """In place of a network whose parameters were not laid out for inference: acting with it would be
    acting with other parameters.
    """

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("Actor.refresh() must be called before the actor acts")


class Actor:
    def __init__(
        self, settings: Settings, spec: EnvSpec, parameters: Tensor, mean: Tensor, scale: Tensor
    ) -> None:
        """`parameters` is the flat vector that the policy lives in; it, `mean` and `scale` may change
        between uses.
        """
        self.spec, self.parameters, self.policy = spec, parameters, Policy(settings, spec)
        self.tensors = parameters, mean, scale
        bind(self.policy, parameters)
        self.network = _network(settings, self.policy, parameters)
        self.inference: Network | NotRefreshed = NotRefreshed()
        reads_bytes = isinstance(self.network, NativeCnn)
        self.prepare = Tensor.contiguous if reads_bytes else Preparation(settings, spec, mean, scale)

    def refresh(self) -> None:
        """The parameters may have changed. Needed before the first use too."""
        self.network.begin_inference()
        self.inference = self.network

    def act(self, rows: np.ndarray, noise: np.ndarray, mask: np.ndarray | None = None) -> Acted:
        """Drawn actions, their log-probabilities and values. `mask` [B, K] says which choices are allowed."""
        if mask is None:
            return self.inference.act(self.prepare(torch.from_numpy(rows)), noise)
        output = heads.masked(self.infer(rows), torch.from_numpy(mask))
        return Acted(*heads.act(self.spec.action, output.action, None, noise), output.values.numpy())

    def most_likely(self, rows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        output = heads.masked(self.infer(rows), None if mask is None else torch.from_numpy(mask))
        return heads.mode(self.spec.action, output.action).numpy()

    def value(self, rows: np.ndarray) -> np.ndarray:
        return self.infer(rows).value.numpy()

    def infer(self, rows: np.ndarray) -> Output:
        return self.inference.infer(self.prepare(torch.from_numpy(rows)))

    def draw_noise(self, draws: np.random.Generator, *shape: int) -> np.ndarray:
        return heads.draw_noise(self.spec.action, draws, *shape)


def check_network(settings: Settings, spec: EnvSpec, policy: Policy) -> None:
    """A network of the user's own is tried on observations that mean nothing; ours are known to be exact."""
    if policy.kind.initial != "own":
        return
    draws = generator(0, "trial observation")
    rows = draws.integers(0, 256, (TRIAL_ROWS, *spec.observation_shape)).astype(spec.observation_dtype)
    if spec.vector_shape:
        spec.vectors(rows)[...] = draws.standard_normal((TRIAL_ROWS, *spec.vector_shape), np.float32)
    observation = Preparation(settings, spec, torch.zeros(()), torch.ones(()))(torch.from_numpy(rows))
    own_network.check(settings.training.policy, policy.trunk, observation, policy.drawn_trunk)


def _network(settings: Settings, policy: Policy, parameters: Tensor) -> Network:
    """Our kernels where those were chosen; of torch's, a policy of two MLPs is stacked."""
    is_native = settings.training.kernels == "native"
    if isinstance(policy.trunk, Mlp) and policy.value_trunk is not None:
        return NativeMlp(policy, parameters) if is_native else StackedMlp(policy, parameters)
    if is_native:
        return NativeCnn(policy, parameters, settings.training.policy, settings.training.width)
    return AutogradNetwork(policy)
