"""Curiosity in a worker: it rewards what a slice has collected, and learns beside the policy.

Rewards are computed at the end of a collect with the parameters and statistics of the iteration's start, so
a collect that is done again gives the same numbers. T steps, n envs of a slice, B samples.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.curiosity import whitening
from parallel_ppo.algorithms.curiosity.episodic import Memories
from parallel_ppo.algorithms.curiosity.model import CollectedColumns, Transitions
from parallel_ppo.algorithms.curiosity.models import MODELS
from parallel_ppo.algorithms.normalisers import Moments
from parallel_ppo.envs.build import make_slice
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import NumbersError
from parallel_ppo.keyed import generator, integer_seed
from parallel_ppo.policies import heads
from parallel_ppo.policies.network import Output
from parallel_ppo.policies.parameters import bind, views
from parallel_ppo.settings.schema import Settings, Shape
from parallel_ppo.workers.carried import Arrays
from parallel_ppo.workers.memory import Memory, Slab
from parallel_ppo.workers.tasks import Collect, Gradient, WarmUp

COLUMNS = CollectedColumns._fields[:-2]  # those that are fields of the slab
READ = "observation", "action", "episode_start", "target_features"  # what predictors learn from


class Curious(Protocol):
    def reward(self, task: Collect, slab: Slab, columns: slice) -> Arrays:
        """Writes the rewards of a slice's rollout; returns what its next iteration starts from."""

    def learn(self, task: Gradient, rows: Tensor, statistics: Statistics) -> Statistics:
        """Writes the predictors' part of a lane's gradient; returns the statistics with their losses."""

    def warm_up(self, task: WarmUp) -> None:
        """Statistics of what a random agent sees, in environments that nobody learns from."""


class NoCuriosity:
    def reward(self, task: Collect, slab: Slab, columns: slice) -> Arrays:
        return {}

    def learn(self, task: Gradient, rows: Tensor, statistics: Statistics) -> Statistics:
        return statistics

    def warm_up(self, task: WarmUp) -> None:
        raise AssertionError("there is nothing to warm up")


@torch.inference_mode(False)  # whoever asks first: what is made here can be differentiated
def make_curiosity(settings: Settings, spec: EnvSpec, memory: Memory) -> Curious:
    return Curiosity(settings, spec, memory) if settings.curiosity.is_curious else NoCuriosity()


class Curiosity:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: Memory) -> None:
        self.settings, self.spec, self.memory = settings, spec, memory
        self.shape = settings.shape
        statistics = memory.tensor("whitening_mean"), memory.tensor("whitening_scale")
        self.whiten = whitening.Whitening(settings, spec, *statistics)
        self.model: Any = MODELS[settings.curiosity.kind](settings, spec)
        bind(self.model, memory.tensor("parameters")[memory.policy_end :])
        self.parameters = list(self.model.parameters())
        self.lane_views: dict[int, list[Tensor]] = {}
        self.rows = [_rows(slab) for slab in memory.slabs]
        self.carried = [name for name in Memories._fields if memory.table[name].carried]

    def reward(self, task: Collect, slab: Slab, columns: slice) -> Arrays:
        self.model.begin_inference()
        memory, slot = self.memory, self.memory.slot(task.iteration)
        carried = {name: getattr(memory, name)[slot, columns].copy() for name in self.carried}
        own: dict[str, Any] = {name: getattr(slab, name)[:, columns] for name in COLUMNS}
        collected = CollectedColumns(**own, novelty_scale=tuple(memory.novelty_scale), carried=carried)
        self.model.reward(self.whiten, collected)
        if not np.isfinite(collected.intrinsic_reward).all():
            raise NumbersError(
                f"the {self.settings.curiosity.kind} reward of an environment among {columns.start} to"
                f" {columns.stop - 1} is not finite; a lower curiosity.learning_rate may help"
            )
        seen = collected.observation[1:]
        memory.observation_moments[task.slice_index] = whitening.moments(
            self.spec, seen.reshape(-1, *seen.shape[2:])
        )
        return carried

    def learn(self, task: Gradient, rows: Tensor, statistics: Statistics) -> Statistics:
        slice_index, number = divmod(task.lane, len(self.shape.lane_sizes))
        chosen = rows[: self.shape.taught_samples[number]]
        if not len(chosen):
            return statistics
        columns = self.rows[task.iteration % len(self.rows)]
        self.model.begin_step((task.iteration, task.epoch, task.minibatch))
        with torch.enable_grad():
            losses = self.model.losses(self.whiten, Transitions(columns, chosen, self.settings.env.num_envs))
            found = torch.autograd.grad(losses.total / self.shape.num_taught, self.parameters)
        into = self.gradient_views(slice_index * self.shape.teaching_lanes + number)
        for view, gradient in zip(into, found, strict=True):
            view.copy_(gradient)
        return statistics._replace(**{f"{name}_loss": float(value) for name, value in losses.sums().items()})

    def gradient_views(self, lane: int) -> list[Tensor]:
        """Of a lane among those that teach."""
        if lane not in self.lane_views:
            vector = self.memory.tensor("predictor_gradient")[lane]
            vector.zero_()  # what lies between the parameters stays 0
            self.lane_views[lane] = list(views(self.model, vector).values())
        return self.lane_views[lane]

    def warm_up(self, task: WarmUp) -> None:
        """In pieces, merged in order: long warm-ups need no more memory than short ones."""
        settings, index, shape = self.settings, task.slice_index, self.settings.shape
        seed, num_steps = settings.training.seed, warm_up_steps(settings)
        env = make_slice(
            settings.changed("training", seed=integer_seed(seed, "curiosity environments")), index
        )
        draws, found = generator(seed, "curiosity action", index), Moments.empty()
        try:
            seen = [env.reset()]
            for step in range(num_steps):
                seen.append(env.step(self.random_action(draws, env.action_mask)).observation)
                self.memory.steps_done[index] = (step + 1) * shape.num_steps // num_steps
                if len(seen) * shape.slice_envs >= whitening.EXACT_ROWS or step + 1 == num_steps:
                    rows = np.concatenate(seen)
                    found = found.merged(Moments(len(rows), *whitening.moments(self.spec, rows)))
                    seen = []
        finally:
            env.close()
        self.memory.observation_moments[index] = found.mean, found.squares

    def random_action(self, draws: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        """As a policy draws whose outputs are all 0."""
        spec, num = self.spec.action, self.settings.shape.slice_envs
        width = heads.num_outputs(spec)
        log_std = torch.zeros(width) if spec.kind == "gaussian" else None
        output = Output(torch.zeros(num, width), log_std, torch.zeros(num))
        output = heads.masked(output, None if mask is None else torch.from_numpy(mask))
        return heads.act(spec, output.action, log_std, heads.draw_noise(spec, draws, num))[0]


def warm_up_steps(settings: Settings) -> int:
    """Of each environment."""
    return -(-settings.curiosity.warmup_steps // settings.env.num_envs)


def num_warm_up_rows(shape: Shape, num_steps: int) -> int:
    """Observations of a slice, the first ones included."""
    return (num_steps + 1) * shape.slice_envs


def _rows(slab: Slab) -> dict[str, Tensor]:
    columns = {name: torch.from_numpy(getattr(slab, name)) for name in READ}
    return {name: column.flatten(0, 1) for name, column in columns.items()}
