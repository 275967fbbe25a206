"""The hidden state of a recurrent policy: it belongs to the environment, as its observation does.

It is carried from step to step and from iteration to iteration, and is 0 where an episode starts. The state before
each sequence of `recurrence.sequence_length` steps is kept while collecting; gradients flow back to there.
T steps, E envs, n envs of a slice, L steps of a sequence, B sequences of a microbatch, S numbers of state.
"""

from typing import Any

import numpy as np
import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import Axes, Rollout, Start, array, f4
from parallel_ppo.policies.network import Past, Sequences
from parallel_ppo.settings.schema import Settings


class HiddenRollout(Rollout):
    hidden_start = array("sequences E hidden", f4, written="collect", by_node=True)

    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return settings.recurrence.is_recurrent

    @classmethod
    def axes(cls, settings: Settings, spec: EnvSpec) -> Axes:
        sizes = settings.sizes
        num_sequences = sizes.num_steps // sizes.sequence_length
        return {"hidden": settings.recurrence.state_size, "sequences": num_sequences}


class HiddenStart(Start):
    hidden = array("E hidden", f4)  # after the last step of the iteration before

    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return settings.recurrence.is_recurrent


class Walk:
    """A slice's way through a rollout. Without a recurrent policy there is no state, and no past."""

    def __init__(self, rollout: RolloutBuffer, columns: slice, state: np.ndarray | None, length: int) -> None:
        self.rollout, self.columns, self.length = rollout, columns, length
        self.state = state  # [n, S]; the actor changes it in place

    def past(self, first: int, end: int) -> Past | None:
        """Returns the past of the steps from `first` to `end`."""
        if self.state is None:
            return None
        starts = self.rollout.episode_start[first:end, self.columns]
        return Past(self.state, np.ascontiguousarray(starts))

    def collected(self, t: int) -> Past | None:
        """Keeps the state if a sequence begins at step t, and returns the past of that step."""
        if self.state is not None and t % self.length == 0:
            self.rollout.of(HiddenRollout).hidden_start[t // self.length, self.columns] = self.state
        return self.past(t, t + 1)

    def inside(self) -> Past | None:
        """Returns the past of the next observation, as if no episode ended before it."""
        if self.state is None:
            return None
        return Past(self.state, np.zeros((1, len(self.state)), np.uint8))


class RecurrenceInWorker:
    """The worker's half; the coordinator has none."""

    def __init__(self, settings: Settings, memory: SharedMemory) -> None:
        self.is_needed, self.sizes, self.memory = settings.recurrence.is_recurrent, settings.sizes, memory

    def walk(self, iteration: int, columns: slice) -> Walk:
        """From the start of an iteration."""
        rollout, slot, state = self.memory.rollout(iteration), self.memory.slot(iteration), None
        if self.is_needed:
            state = self.memory.of(HiddenStart).hidden[slot, columns].copy()
        return Walk(rollout, columns, state, self.sizes.sequence_length)

    def carried(self, walk: Walk) -> dict[str, np.ndarray]:
        """Returns the state that the next iteration starts with."""
        return {} if walk.state is None else {"hidden": walk.state}

    def by_step(self, rows: np.ndarray) -> np.ndarray:
        """The rows of a microbatch, sequence by sequence, step by step."""
        length = self.sizes.sequence_length
        return rows if length == 1 else rows.reshape(-1, length).T.reshape(-1)

    def sequences(self, iteration: int, rows: np.ndarray, observation: Any) -> Any:
        """A microbatch as a recurrent network reads it; `rows` come from `by_step`."""
        if not self.is_needed:
            return observation
        rollout, rows = self.memory.rollout(iteration), rows.reshape(self.sizes.sequence_length, -1)
        step, env = np.divmod(rows[0], self.sizes.num_envs)
        state = rollout.of(HiddenRollout).hidden_start[step // self.sizes.sequence_length, env]
        starts = rollout.episode_start.reshape(-1)[rows]
        return Sequences(observation, torch.from_numpy(state), torch.from_numpy(starts))
