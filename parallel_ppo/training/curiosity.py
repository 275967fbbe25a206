"""What the coordinator remembers of curiosity: the statistics that observations and rewards are scaled with.

E envs, N elements of an observation, T steps.
"""

from typing import Protocol

import numpy as np

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.curiosity import whitening
from parallel_ppo.algorithms.curiosity.encoders import draw
from parallel_ppo.algorithms.curiosity.models import MODELS
from parallel_ppo.algorithms.curiosity.returns import intrinsic_advantages
from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.algorithms.normalisers import (
    EPSILON,
    Moments,
    RewardNormalizer,
    explained_variance,
    moment_arrays,
    moments_of,
)
from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.exits import InputError
from parallel_ppo.settings.curiosity import cannot_be_whitened
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.carried import Arrays
from parallel_ppo.workers.curiosity import num_warm_up_rows, warm_up_steps
from parallel_ppo.workers.memory import Memory, Slab
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.tasks import WarmUp

NO_CLIP = np.inf


class CuriosityState(Protocol):
    @property
    def needs_warm_up(self) -> bool: ...

    def warm_up(self, pool: Pool, cluster: Cluster) -> None: ...

    def scale(self, slab: Slab) -> None:
        """Learns how large the intrinsic rewards are; before the targets."""

    def combine(self, slab: Slab) -> None:
        """Adds their advantages to those of the environment's rewards; after the targets."""

    def observe(self, cluster: Cluster) -> None:
        """Learns from the observations of an iteration; after its update."""

    def columns(self, slab: Slab, sums: Statistics, norms: list[float]) -> dict[str, float]:
        """Metrics; `sums` are over as many optimizer steps as there are norms of the predictors' gradient."""

    def draw(self) -> None:
        """The predictors' first parameters."""

    def arrays(self) -> Arrays: ...

    def rewind(self, arrays: Arrays) -> None: ...


class NothingRemembered:
    needs_warm_up = False

    def warm_up(self, pool: Pool, cluster: Cluster) -> None:
        pass

    def scale(self, slab: Slab) -> None:
        pass

    def combine(self, slab: Slab) -> None:
        pass

    def observe(self, cluster: Cluster) -> None:
        pass

    def columns(self, slab: Slab, sums: Statistics, norms: list[float]) -> dict[str, float]:
        return {}

    def draw(self) -> None:
        pass

    def arrays(self) -> Arrays:
        return {}

    def rewind(self, arrays: Arrays) -> None:
        pass


def make_curiosity_state(settings: Settings, memory: Memory) -> CuriosityState:
    return Remembered(settings, memory) if settings.curiosity.is_curious else NothingRemembered()


class Remembered:
    def __init__(self, settings: Settings, memory: Memory) -> None:
        self.settings, self.memory, self.spec = settings, memory, memory.spec
        self.rewards = RewardNormalizer(settings.env.num_envs, settings.curiosity.gamma)
        self.observations = Moments.empty(memory.whitening_mean.shape)
        self.errors = Moments.empty()  # of ngu's predictor
        self.scaled = np.zeros(0, np.float32)  # [T, E] of the present iteration

    # --- observations ---------------------------------------------------------------------------------------

    @property
    def needs_warm_up(self) -> bool:
        return self.observations.num == 0

    def warm_up(self, pool: Pool, cluster: Cluster) -> None:
        pool.run(WarmUp(index) for index in cluster.slices)
        self._merge(cluster, num_warm_up_rows(self.settings.shape, warm_up_steps(self.settings)))
        variance = self.observations.variance
        if not np.isfinite(variance).all() or not variance.any():
            how = "do not change" if np.isfinite(variance).all() else "are too large"
            num_steps = self.settings.curiosity.warmup_steps
            raise InputError(cannot_be_whitened(self.settings.env.id, how, num_steps))

    def observe(self, cluster: Cluster) -> None:
        if self.memory.novelty.size:
            self.errors = self.errors.merged(Moments.of(self.memory.novelty.reshape(-1)))
        self._merge(cluster, self.settings.shape.num_steps * self.settings.shape.slice_envs)

    def _merge(self, cluster: Cluster, num_rows: int) -> None:
        """Slice by slice, in order: the same whoever saw them."""
        own = self.memory.observation_moments[cluster.slices.start : cluster.slices.stop]
        for mean, squares in cluster.gather_slices(own):
            self.observations = self.observations.merged(Moments(float(num_rows), mean, squares))
        self._publish()

    def _publish(self) -> None:
        self.memory.whitening_mean[...] = self.observations.mean
        self.memory.whitening_scale[...] = whitening.scale(self.spec, self.observations)
        if self.errors.num:
            self.memory.novelty_scale[:] = self.errors.mean, 1 / np.sqrt(self.errors.variance + EPSILON)

    # --- rewards --------------------------------------------------------------------------------------------

    def scale(self, slab: Slab) -> None:
        """Forward in time, for each environment, over iterations and episodes."""
        never = np.zeros(slab.episode_start.shape, bool)
        scaled = self.rewards.scale(slab.intrinsic_reward, never, NO_CLIP)
        self.scaled = scaled if self.settings.curiosity.normalize else slab.intrinsic_reward
        if slab.bonus.size:
            slab.bonus[...] = np.float32(self.settings.curiosity.intrinsic_coef) * self.scaled

    def combine(self, slab: Slab) -> None:
        chosen = self.settings.curiosity
        if chosen.num_values == 1:
            return
        advantage = intrinsic_advantages(
            reward=self.scaled, value=slab.intrinsic_value, gamma=chosen.gamma,
            gae_lambda=self.settings.training.gae_lambda,
        )  # fmt: skip
        slab.intrinsic_return[...] = advantage + slab.intrinsic_value[:-1]
        slab.advantage *= np.float32(chosen.extrinsic_coef)
        slab.advantage += np.float32(chosen.intrinsic_coef) * advantage

    # --- what is told and kept ------------------------------------------------------------------------------

    def columns(self, slab: Slab, sums: Statistics, norms: list[float]) -> dict[str, float]:
        chosen, steps = self.settings.curiosity, max(1, len(norms))
        learned = steps * self.settings.shape.num_taught
        columns = {
            "intrinsic_reward": float(slab.intrinsic_reward.mean(dtype=np.float64)),
            "intrinsic_reward_scaled": float(self.scaled.mean(dtype=np.float64)),
            "intrinsic_return": float(self.rewards.running.mean()),
            **{
                f"{name}_loss": getattr(sums, f"{name}_loss") / learned for name in MODELS[chosen.kind].LOSSES
            },
            "predictor_grad_norm": plain_sum(norms) / steps,
        }
        if slab.episodic_size.size:
            columns["episodic_memory_size"] = float(slab.episodic_size.mean(dtype=np.float64))
        if chosen.num_values == 2:
            columns["intrinsic_value_loss"] = sums.intrinsic_value_loss / (
                steps * self.settings.shape.batch_size
            )
            columns["intrinsic_explained_variance"] = explained_variance(
                value=slab.intrinsic_value[:-1], target_return=slab.intrinsic_return
            )
        return columns

    def draw(self) -> None:
        model = MODELS[self.settings.curiosity.kind](self.settings, self.spec)
        vector = self.memory.tensor("parameters")[self.memory.policy_end :]
        draw(model, vector, self.settings.training.seed, "curiosity initial")

    def arrays(self) -> Arrays:
        return {
            "curiosity.parameters": self.memory.parameters[self.memory.policy_end :].copy(),
            "curiosity.running": self.rewards.running.copy(),
            **moment_arrays("curiosity.rewards", self.rewards.moments),
            **moment_arrays("curiosity.observations", self.observations),
            **moment_arrays("curiosity.errors", self.errors),
        }

    def rewind(self, arrays: Arrays) -> None:
        self.memory.parameters[self.memory.policy_end :] = arrays["curiosity.parameters"]
        self.rewards.running = arrays["curiosity.running"].copy()
        self.rewards.moments = moments_of("curiosity.rewards", arrays)
        self.observations = moments_of("curiosity.observations", arrays)
        self.errors = moments_of("curiosity.errors", arrays)
        self._publish()
