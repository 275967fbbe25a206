"""A policy as a torch module: trunk(s), cell(s) of a recurrent one, an action head and a value head; `network.py`
lists how it is computed.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.policies import heads
from parallel_ppo.policies.cells import Cell
from parallel_ppo.policies.network import Output, Sequences
from parallel_ppo.policies.own_network import maker
from parallel_ppo.policies.trunks import Mixed, Mlp
from parallel_ppo.settings.kinds import NetworkKind, network_kind
from parallel_ppo.settings.schema import Settings


class Policy(nn.Module):
    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        self.kind = network_kind(settings.training.policy)
        self.new_trunk = functools.partial(_trunk, self.kind, settings, spec)
        self.trunk = self.new_trunk()
        recurrence, num_features = settings.recurrence, self.trunk.num_features
        has_value_trunk = self.kind.separate_value_trunk and (
            recurrence.separate_value or not recurrence.is_recurrent
        )
        self.value_trunk = self.new_trunk() if has_value_trunk else None
        self.cell: Cell | None = None
        self.value_cell: Cell | None = None
        if recurrence.is_recurrent:
            make_cell = functools.partial(Cell, recurrence.kind, num_features, recurrence.size)
            self.cell, num_features = make_cell(), recurrence.size
            self.value_cell = make_cell() if recurrence.separate_value else None
        self.action_head = nn.Linear(num_features, heads.num_outputs(spec.action))
        self.value_head = nn.Linear(num_features, settings.curiosity.num_values)
        is_gaussian = spec.action.kind == "gaussian"
        self.log_std = nn.Parameter(torch.zeros(spec.action.sizes[0])) if is_gaussian else None
        self.initial_log_std = settings.training.initial_log_std
        self.all_by_fan_in = settings.training.initialization == "fan_in"

    def forward(self, observation: Any) -> Output:
        if self.cell is not None:
            return self.unrolled(observation)[0]
        features = self.trunk(observation)
        value_features = features if self.value_trunk is None else self.value_trunk(observation)
        return Output(self.action_head(features), self.log_std, self.value_head(value_features))

    def unrolled(self, sequences: Sequences) -> tuple[Output, Tensor]:
        """Runs a recurrent policy over sequences; also returns the state after the last step."""
        features = self.trunk(sequences.observation)
        value_features = features if self.value_trunk is None else self.value_trunk(sequences.observation)
        found = value_found = self._remembered(self.cell, features, sequences, 0)
        state = found[1]
        if self.value_cell is not None:
            value_found = self._remembered(self.value_cell, value_features, sequences, state.shape[1])
            state = torch.cat((state, value_found[1]), 1)
        return Output(self.action_head(found[0]), self.log_std, self.value_head(value_found[0])), state

    def _remembered(
        self, cell: Any, features: Tensor, sequences: Sequences, first: int
    ) -> tuple[Tensor, Tensor]:
        """`first`: where the cell's state begins."""
        rows, state, starts = sequences.by_step(features)
        output, state = cell(rows, state[:, first : first + cell.num_states], starts)
        return sequences.as_given(output), state

    def draws_by_fan_in(self, name: str) -> bool:
        """In a mixed trunk, a network's own kind of draws applies to images only."""
        if self.all_by_fan_in:
            return name != "log_std"
        prefix = "trunk.images." if isinstance(self.trunk, Mixed) else "trunk."
        return self.kind.initial == "fan_in" and name.startswith(prefix)

    def drawn_trunk(self, seed: int) -> Any:
        """A new trunk with the weights that its constructor draws."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.new_trunk()

    def forget_layouts(self) -> None:
        """Must be called after the parameters change: some trunks keep weights in a layout for inference."""
        for module in self.modules():
            forget = getattr(module, "forget", None)
            if forget is not None:
                forget()


def _trunk(kind: NetworkKind, settings: Settings, spec: EnvSpec) -> Any:
    module, _, name = kind.trunk.partition(":")
    mlp = list(settings.training.hidden_sizes), settings.training.activation
    is_own = kind.initial == "own"
    make = maker(kind.trunk) if is_own else getattr(importlib.import_module(module), name)
    if kind.has_width:
        make = functools.partial(make, factor=settings.training.width)
    if kind.reads == "vectors":
        return make(spec.observation_shape[0], *mlp)
    if spec.parts:
        vector = Mlp(spec.vector_shape[0], *mlp) if spec.vector_shape else None
        return Mixed(make, spec.image_shapes, vector)
    return make(*spec.observation_shape)


class Preparation:
    """Turns rows of the rollout into a network's input: float images, normalized vectors, or a list of both."""

    def __init__(self, settings: Settings, spec: EnvSpec, mean: Tensor, scale: Tensor) -> None:
        self.spec, self.mean, self.scale = spec, mean, scale
        self.normalizes = settings.training.normalize_observations
        self.clip = settings.training.observation_clip

    def __call__(self, rows: Tensor) -> Any:
        if not self.spec.parts:
            return scaled_image(rows) if self.spec.is_image else self.vector(rows)
        return [
            (
                scaled_image(rows[:, part.offset : part.end].reshape(-1, *part.shape))
                if part.is_image
                else self.vector(rows[:, part.offset : part.end].view(torch.float32))
            )
            for part in self.spec.parts
        ]

    def vector(self, rows: Tensor) -> Tensor:
        if not self.normalizes:
            return rows
        return ((rows - self.mean) * self.scale).clamp_(-self.clip, self.clip)


def scaled_image(rows: Tensor) -> Tensor:
    return rows.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255)
