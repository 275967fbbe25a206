"""A training state with invented contents, to be saved, damaged and loaded without a training."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallel_ppo.envs.families import probe
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.policies.parameters import bind, initialize, num_flat, sha256, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training import checkpoint, saving
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory

CARTPOLE = {"env.id": "CartPole-v1", "env.num_envs": 4, "training.n_steps": 8, "training.batch_size": 32,
            "training.policy": "mlp", "training.hidden_sizes": [8, 8]}  # fmt: skip
NATURE = {"env.id": "coinrun", "env.num_envs": 16, "training.n_steps": 16, "training.batch_size": 64,
          "training.policy": "nature"}  # fmt: skip


class World:
    """A training state with invented contents, and what a session uses to save and load it."""

    def __init__(self, flags: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.settings: Settings = load_settings(file=None, flags=flags)
        self.spec = probe(self.settings)
        self.policy = Policy(self.settings, self.spec)
        memory = Memory(self.settings, self.spec, num_flat(self.policy))
        self.state = TrainingState(self.settings, memory)
        bind(self.policy, self.state.parameters)
        self.names = list(views(self.policy, self.state.parameters))
        self.fresh = self.state.snapshot()

    def invent(self, iteration: int, variant: int = 0) -> Snapshot:
        """A state that differs from every other iteration's in every array."""
        draw = np.random.default_rng([iteration, variant])
        state, memory = self.state, self.state.memory
        state.counters.iteration = iteration
        state.counters.env_steps = iteration * self.settings.sizes.steps_per_iteration
        initialize(self.policy, state.parameters, iteration)
        state.first_moment.normal_()
        state.second_moment.uniform_(0, 1)
        slot = iteration % 2
        for env in range(self.settings.env.num_envs):
            size = int(draw.integers(100, 3000))
            memory.state_length[slot, env] = size
            memory.state_bytes[slot, env, :size] = draw.integers(0, 256, size, np.uint8)
        snapshot = state.snapshot()
        environments = snapshot.environments
        copies = {name: rows.copy() for name, rows in environments.rows.items()}
        return snapshot._replace(environments=environments._replace(rows=copies))

    def contents(self, snapshot: Snapshot) -> dict[str, Any]:
        flat = torch.from_numpy(snapshot.arrays["parameters"])
        weights = {
            name: np.ascontiguousarray(view.numpy()) for name, view in views(self.policy, flat).items()
        }
        return {"weights": weights, "metadata": {"format": "parallel_ppo policy 1"},
        "policy_sha256": sha256(self.policy, flat),
                "learning": learning_settings(self.settings)}  # fmt: skip

    def save(self, directory: Path, snapshot: Snapshot, keep: int = 2) -> bool:
        keeper = saving.Keeper(directory, keep=keep, warn=lambda line: None)
        return keeper.save(snapshot, before=lambda: None, is_best=True, **self.contents(snapshot))

    def flat(self, weights: dict[str, np.ndarray]) -> torch.Tensor:
        vector = torch.zeros(len(self.state.parameters))
        for name, view in views(self.policy, vector).items():
            view.copy_(torch.from_numpy(weights[name]))
        return vector

    def expected(self) -> checkpoint.Expected:
        shapes = {name: tuple(view.shape) for name, view in views(self.policy, self.state.parameters).items()}
        return checkpoint.Expected(self.fresh, shapes, learning_settings(self.settings),
                                   lambda weights: sha256(self.policy, self.flat(weights)),
                                   self.state.memory.misfit)  # fmt: skip

    def loaded_iteration(self, directory: Path, candidates: dict[int, Snapshot]) -> int | None:
        """Which of `candidates` the newest valid checkpoint holds, bit for bit; None if there is none or
        it is another.
        """
        found = checkpoint.newest(directory, trust=False, expected=self.expected())
        if found is None:
            return None
        _, snapshot, weights, _ = found
        original = candidates.get(snapshot.counters["iteration"])
        if original is None:
            return None
        packed = original.environments.pack()
        same = all(np.array_equal(original.arrays[name], array) for name, array in snapshot.arrays.items())
        same &= all(np.array_equal(packed[name], array) for name, array in snapshot.environments.items())
        same &= bool(torch.equal(self.flat(weights), torch.from_numpy(original.arrays["parameters"])))
        return snapshot.counters["iteration"] if same else None
