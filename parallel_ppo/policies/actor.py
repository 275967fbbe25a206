"""A policy that acts: used by workers, evaluation, films and loaded policies. B rows of the rollout, K choices."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads, own_network
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.native_cnn import NativeCnn
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.policies.native_recurrent import NativeRecurrent
from parallel_ppo.policies.network import Acted, Network, Output, Past, Sequences
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
        self.is_fresh, self.state_size = False, settings.recurrence.state_size
        reads_bytes = isinstance(self.network, NativeCnn | NativeRecurrent) and spec.is_image
        self.prepare = Tensor.contiguous if reads_bytes else Preparation(settings, spec, mean, scale)

    def refresh(self) -> None:
        """Must be called before the first use and after each change of the parameters."""
        self.network.begin_inference()
        self.is_fresh = True

    def act(
        self, rows: np.ndarray, noise: np.ndarray, mask: np.ndarray | None = None, past: Past | None = None
    ) -> Acted:
        """`mask` [B, K] is 1 for each allowed choice. Every recurrent policy needs its past, and updates its state."""
        if mask is None:
            assert self.is_fresh, "Actor.refresh() comes first"
            return self.network.act(self.prepared(torch.from_numpy(rows), past), noise)
        return heads.acted(self.spec.action, self.masked(rows, mask, past), noise)

    def most_likely(
        self, rows: np.ndarray, mask: np.ndarray | None = None, past: Past | None = None
    ) -> np.ndarray:
        return heads.mode(self.spec.action, self.masked(rows, mask, past).action).numpy()

    def masked(self, rows: np.ndarray, mask: np.ndarray | None, past: Past | None = None) -> Output:
        return heads.masked(self.infer(rows, past), None if mask is None else torch.from_numpy(mask))

    def value(self, rows: np.ndarray, past: Past | None = None) -> np.ndarray:
        return self.values(rows, past)[:, 0]

    def values(self, rows: np.ndarray, past: Past | None = None) -> np.ndarray:
        """[B, V]; leaves the past as it is."""
        return self.infer(rows, None if past is None else past.copy()).values.numpy()

    def infer(self, rows: np.ndarray, past: Past | None = None) -> Output:
        assert self.is_fresh, "Actor.refresh() comes first"
        return self.network.infer(self.prepared(torch.from_numpy(rows), past))

    def prepared(self, rows: Tensor, past: Past | None = None) -> Any:
        """The input of the network."""
        if past is None:
            return self.prepare(rows)
        return Sequences(self.prepare(rows), torch.from_numpy(past.state), torch.from_numpy(past.starts))

    def first_state(self, num_rows: int) -> np.ndarray | None:
        """Returns the state of a recurrent policy at the start of an episode, for `Past`; else None."""
        return np.zeros((num_rows, self.state_size), np.float32) if self.state_size else None

    def draw_noise(self, draws: np.random.Generator, *shape: int) -> np.ndarray:
        return heads.draw_noise(self.spec.action, draws, *shape)


def check_network(settings: Settings, spec: EnvSpec, policy: Policy) -> None:
    """Tries a network of the user on random observations; ours are known to be exact."""
    if policy.kind.initial == "own":
        observation = trial_observation(settings, spec)
        own_network.check(settings.training.policy, policy.trunk, observation, policy.drawn_trunk)


def trial_observation(settings: Settings, spec: EnvSpec) -> Any:
    """Random observations, prepared for the network."""
    draws = generator(0, "trial observation")
    rows = draws.integers(0, 256, (TRIAL_ROWS, *spec.observation_shape)).astype(spec.observation_dtype)
    if spec.vector_shape:
        spec.vectors(rows)[...] = draws.standard_normal((TRIAL_ROWS, *spec.vector_shape), np.float32)
    return Preparation(settings, spec, torch.zeros(()), torch.ones(()))(torch.from_numpy(rows))


def _network(settings: Settings, policy: Policy, parameters: Tensor) -> Network:
    is_native = settings.training.kernels == "native"
    if policy.cell is not None:
        return NativeRecurrent(settings, policy, parameters) if is_native else AutogradNetwork(policy)
    if isinstance(policy.trunk, Mlp) and policy.value_trunk is not None:
        return NativeMlp(policy, parameters) if is_native else StackedMlp(policy, parameters)
    if is_native:
        return NativeCnn(policy, parameters, settings.training.policy, settings.training.width)
    return AutogradNetwork(policy)
