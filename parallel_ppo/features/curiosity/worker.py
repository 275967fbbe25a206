"""Curiosity in a worker: it rewards the rollout of a slice, and its predictors learn in the policy's microbatches.

Rewards are computed at the end of a collect with the parameters and statistics of the iteration's start, so
a collect that is done again gives the same numbers. T steps, n envs of a slice, B samples.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.envs.families import make_slice
from parallel_ppo.exits import NumbersError
from parallel_ppo.features.curiosity import MODELS, whitening
from parallel_ppo.features.curiosity.episodic import Memories
from parallel_ppo.features.curiosity.model import CollectedColumns, Transitions
from parallel_ppo.features.moments import Moments
from parallel_ppo.keyed import generator, integer_seed
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.policies import heads
from parallel_ppo.policies.network import Output
from parallel_ppo.policies.parameters import bind, views
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import Sizes

COLUMNS = CollectedColumns._fields[:-2]  # those that are fields of the rollout
READ = "observation", "action", "episode_start", "target_features"  # what predictors learn from


class CuriosityInWorker:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: SharedMemory, predictors: Tensor) -> None:
        """`predictors` is their part of the flat vector of parameters."""
        self.settings, self.spec, self.memory = settings, spec, memory
        self.sizes = settings.sizes
        self.own: Any = memory  # with the arrays of `CuriosityState`
        statistics = memory.tensor("whitening_mean"), memory.tensor("whitening_scale")
        self.whiten = whitening.Whitening(settings, spec, *statistics)
        self.model: Any = MODELS[settings.curiosity.kind](settings, spec)
        bind(self.model, predictors)
        self.parameters = list(self.model.parameters())
        self.microbatch_views: dict[int, list[Tensor]] = {}
        self.rows = [_rows(rollout) for rollout in memory.rollouts]
        self.carried = [name for name in Memories._fields if name in memory.table]
        self.rollout_arrays = [name for name in COLUMNS if name in memory.table]

    def reward(
        self, slice_index: int, iteration: int, rollout: RolloutBuffer, columns: slice
    ) -> dict[str, np.ndarray]:
        """Writes the rewards of a slice's rollout; returns the start of its next iteration."""
        self.model.begin_inference()
        memory, slot = self.memory, self.memory.slot(iteration)
        carried = {name: getattr(memory, name)[slot, columns].copy() for name in self.carried}
        own: dict[str, Any] = {name: getattr(rollout, name)[:, columns] for name in self.rollout_arrays}
        collected = CollectedColumns(**own, novelty_scale=tuple(self.own.novelty_scale), carried=carried)
        self.model.reward(self.whiten, collected)
        if not np.isfinite(collected.intrinsic_reward).all():
            raise NumbersError(
                f"the {self.settings.curiosity.kind} reward of an environment among {columns.start} to"
                f" {columns.stop - 1} is not finite; a lower curiosity.learning_rate may help"
            )
        seen = collected.observation[1:]
        self.own.observation_moments[slice_index] = self.moments(seen.reshape(-1, *seen.shape[2:]))
        return carried

    def moments(self, rows: np.ndarray) -> np.ndarray:
        return whitening.moments(self.spec, rows, by_kernels=self.whiten.writes_bytes)

    def learn(
        self, microbatch: int, step: tuple[int, int, int], rows: Tensor, statistics: Statistics
    ) -> Statistics:
        """Writes the predictors' part of a microbatch's gradient; returns the statistics with their losses. `step` is
        iteration, epoch and minibatch.
        """
        slice_index, number = divmod(microbatch, len(self.sizes.microbatch_sizes))
        chosen = rows[: self.sizes.predictor_samples[number]]
        if not len(chosen):
            return statistics
        columns = self.rows[step[0] % len(self.rows)]
        self.model.begin_step(step)
        with torch.enable_grad():
            losses = self.model.losses(self.whiten, Transitions(columns, chosen, self.settings.env.num_envs))
            found = torch.autograd.grad(losses.total / self.sizes.num_predictor_samples, self.parameters)
        into = self.gradient_views(slice_index * self.sizes.predictor_microbatches + number)
        for view, gradient in zip(into, found, strict=True):
            view.copy_(gradient)
        return statistics._replace(**{f"{name}_loss": float(value) for name, value in losses.sums().items()})

    def gradient_views(self, microbatch: int) -> list[Tensor]:
        """The predictors' gradient of one of the microbatches that train them."""
        if microbatch not in self.microbatch_views:
            vector = self.memory.tensor("predictor_gradient")[microbatch]
            vector.zero_()  # gaps between the parameters stay 0
            self.microbatch_views[microbatch] = list(views(self.model, vector).values())
        return self.microbatch_views[microbatch]

    def warm_up(self, index: int) -> None:
        """Statistics of the observations of a random agent, in separate environments.

        They are merged piece by piece, so long warm-ups need no more memory than short ones.
        """
        settings, sizes = self.settings, self.settings.sizes
        seed, num_steps = settings.training.seed, warm_up_steps(settings)
        env = make_slice(
            settings.changed("training", seed=integer_seed(seed, "curiosity environments")), index
        )
        draws, found = generator(seed, "curiosity action", index), Moments.empty()
        try:
            seen = [env.reset()]
            for step in range(num_steps):
                seen.append(env.step(self.random_action(draws, env.action_mask)).observation)
                self.memory.steps_done[index] = (step + 1) * sizes.num_steps // num_steps
                if len(seen) * sizes.slice_envs >= whitening.EXACT_ROWS or step + 1 == num_steps:
                    rows = np.concatenate(seen)
                    found = found.merged(Moments(len(rows), *self.moments(rows)))
                    seen = []
        finally:
            env.close()
        self.own.observation_moments[index] = found.mean, found.squares

    def random_action(self, draws: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        """Drawn as from a policy with outputs 0."""
        spec, num = self.spec.action, self.settings.sizes.slice_envs
        width = heads.num_outputs(spec)
        log_std = torch.zeros(width) if spec.kind == "gaussian" else None
        output = Output(torch.zeros(num, width), log_std, torch.zeros(num, 1))
        output = heads.masked(output, None if mask is None else torch.from_numpy(mask))
        return heads.act(spec, output.action, log_std, heads.draw_noise(spec, draws, num))[0]


def warm_up_steps(settings: Settings) -> int:
    """The warm-up's steps of each environment."""
    return -(-settings.curiosity.warmup_steps // settings.env.num_envs)


def num_warm_up_rows(sizes: Sizes, num_steps: int) -> int:
    """Observations of a slice, the first ones included."""
    return (num_steps + 1) * sizes.slice_envs


def _rows(rollout: RolloutBuffer) -> dict[str, Tensor]:
    columns = {name: torch.from_numpy(getattr(rollout, name)) for name in READ}
    return {name: column.flatten(0, 1) for name, column in columns.items()}
