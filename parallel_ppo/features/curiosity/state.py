"""Curiosity in the coordinator: the statistics that observations and intrinsic rewards are scaled with.

Rewards that are combined as `reward` become a bonus before the targets; as `advantage` they have a separate value
and advantages. E envs, N elements of an observation, T steps.
"""

import numpy as np
import torch

from parallel_ppo.algorithms.algorithm import Statistics
from parallel_ppo.algorithms.minibatches import plain_sum
from parallel_ppo.algorithms.ppo import explained_variance, generalized_advantages
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import InputError
from parallel_ppo.features.curiosity import MODELS, rnd, whitening
from parallel_ppo.features.curiosity.encoders import draw
from parallel_ppo.features.curiosity.worker import num_warm_up_rows, warm_up_steps
from parallel_ppo.features.moments import EPSILON, Moments, Slices
from parallel_ppo.features.rewards import RewardNormalizer
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import Axes, Rollout, Start, State, array, f4, f8, i8
from parallel_ppo.settings.kinds import cannot_be_whitened
from parallel_ppo.settings.schema import Settings

NO_CLIP = np.inf


class CuriosityAxes:
    @classmethod
    def axes(cls, settings: Settings, spec: EnvSpec) -> Axes:
        chosen = settings.curiosity
        return {
            "elements": whitening.num_elements(spec),
            "target": rnd.num_outputs(settings, spec) if chosen.has_target else 0,
            "two_values": chosen.num_values == 2,
        }


class CuriosityRollout(CuriosityAxes, Rollout):
    intrinsic_reward = array("T E", f4, written="collect", gathered=True)
    intrinsic_value = array("T+1 E", f4, written="collect", when="two_values", gathered=True)
    intrinsic_return = array("T E", f4, written="targets", when="two_values", sampled=True)
    target_features = array("T E target", f4, written="collect", by_node=True)


class CuriosityState(CuriosityAxes, State):
    curiosity_running = array("E", f8, saved="curiosity.running")
    curiosity_reward_count = array("", f8, saved="curiosity.rewards.count", least=0)
    curiosity_reward_mean = array("", f8, saved="curiosity.rewards.mean")
    curiosity_reward_squares = array("", f8, saved="curiosity.rewards.squares", least=0)
    curiosity_seen_count = array("", f8, saved="curiosity.observations.count", least=0)
    curiosity_seen_mean = array("elements", f8, saved="curiosity.observations.mean")
    curiosity_seen_squares = array("elements", f8, saved="curiosity.observations.squares", least=0)
    curiosity_error_count = array("", f8, saved="curiosity.errors.count", least=0)  # of NGU's predictor
    curiosity_error_mean = array("", f8, saved="curiosity.errors.mean")
    curiosity_error_squares = array("", f8, saved="curiosity.errors.squares", least=0)
    observation_moments = array("S 2 elements", f8, written="collect")
    whitening_mean = array("elements", f4)  # published, as are the next
    whitening_scale = array("elements", f4)
    novelty_scale = array("2", f4)


class OnlyEpisodic:
    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return settings.curiosity.kind == "ngu"

    @classmethod
    def axes(cls, settings: Settings, spec: EnvSpec) -> Axes:
        return {"remembered": settings.curiosity.ngu_memory * settings.curiosity.ngu_embedding}


class EpisodicRollout(OnlyEpisodic, Rollout):
    novelty = array("T E", f4, written="collect", gathered=True)
    episodic_size = array("1 E", f4, written="collect", gathered=True)


class EpisodicStart(OnlyEpisodic, Start):
    episodic_memory = array("E remembered", f4, used="episodic_used", sparse=True)
    episodic_used = array("E", i8)
    episodic_next = array("E", i8)
    episodic_distance = array("E 2", f8)


CURIOSITY_TABLES = CuriosityRollout, CuriosityState, EpisodicRollout, EpisodicStart


class Curiosity:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: SharedMemory) -> None:
        self.settings, self.spec, self.memory = settings, spec, memory
        self.own = own = memory.of(CuriosityState)
        rewards = Moments(own.curiosity_reward_count, own.curiosity_reward_mean, own.curiosity_reward_squares)
        self.rewards = RewardNormalizer(settings.curiosity.gamma, own.curiosity_running, rewards)
        self.observations = Moments(
            own.curiosity_seen_count, own.curiosity_seen_mean, own.curiosity_seen_squares
        )
        self.errors = Moments(
            own.curiosity_error_count, own.curiosity_error_mean, own.curiosity_error_squares
        )
        self.is_episodic = EpisodicRollout.is_needed(settings)
        self.scaled = np.zeros(0, np.float32)  # [T, E] of the present iteration

    def draw(self, predictors: np.ndarray) -> None:
        """The predictors' first parameters."""
        model = MODELS[self.settings.curiosity.kind](self.settings, self.spec)
        draw(model, torch.from_numpy(predictors), self.settings.training.seed, "curiosity initial")

    # --- observations ---------------------------------------------------------------------------------------

    @property
    def needs_warm_up(self) -> bool:
        return bool(self.observations.num == 0)

    def warmed_up(self, cluster: Slices) -> None:
        """Every slice has watched a random agent (`worker.py`)."""
        self._merge(cluster, num_warm_up_rows(self.settings.sizes, warm_up_steps(self.settings)))
        variance = self.observations.variance
        if not np.isfinite(variance).all() or not variance.any():
            how = "do not change" if np.isfinite(variance).all() else "are too large"
            num_steps = self.settings.curiosity.warmup_steps
            raise InputError(cannot_be_whitened(self.settings.env.id, how, num_steps))

    def learn(self, rollout: RolloutBuffer, cluster: Slices) -> None:
        """From the observations of an iteration, after its update."""
        if self.is_episodic:
            self.errors.add(Moments.of(rollout.of(EpisodicRollout).novelty.reshape(-1)))
        self._merge(cluster, self.settings.sizes.num_steps * self.settings.sizes.slice_envs)

    def _merge(self, cluster: Slices, num_rows: int) -> None:
        """Slice by slice, in order: the same for any number of workers and nodes."""
        found = self.own.observation_moments[cluster.slices.start : cluster.slices.stop]
        for mean, squares in cluster.gather_slices(found):
            self.observations.add(Moments(float(num_rows), mean, squares))
        self.publish()

    def publish(self) -> None:
        self.own.whitening_mean[...] = self.observations.mean
        self.own.whitening_scale[...] = whitening.scale(self.spec, self.observations)
        is_known = bool(self.errors.num)
        self.own.novelty_scale[0] = self.errors.mean if is_known else 0
        self.own.novelty_scale[1] = 1 / np.sqrt(self.errors.variance + EPSILON) if is_known else 0

    # --- rewards --------------------------------------------------------------------------------------------

    def with_bonus(self, reward: np.ndarray, rollout: RolloutBuffer) -> np.ndarray:
        """Scales the intrinsic rewards: forward in time, for each environment, over iterations and episodes. They
        are added where there is one value only.
        """
        chosen, columns = self.settings.curiosity, rollout.of(CuriosityRollout)
        never = np.zeros(rollout.episode_start.shape, bool)
        scaled = self.rewards.scale(columns.intrinsic_reward, never, NO_CLIP)
        self.scaled = scaled if chosen.normalize else columns.intrinsic_reward
        return reward + np.float32(chosen.intrinsic_coef) * self.scaled if chosen.num_values == 1 else reward

    def add_advantages(self, rollout: RolloutBuffer) -> None:
        """The advantages of the intrinsic rewards, where these have a separate value."""
        chosen, columns = self.settings.curiosity, rollout.of(CuriosityRollout)
        if chosen.num_values == 1:
            return
        advantage = intrinsic_advantages(
            reward=self.scaled,
            value=columns.intrinsic_value,
            gamma=chosen.gamma,
            gae_lambda=self.settings.training.gae_lambda,
        )
        columns.intrinsic_return[...] = advantage + columns.intrinsic_value[:-1]
        rollout.advantage *= np.float32(chosen.extrinsic_coef)
        rollout.advantage += np.float32(chosen.intrinsic_coef) * advantage

    # --- metrics --------------------------------------------------------------------------------------------

    def columns(self, rollout: RolloutBuffer, sums: Statistics, norms: list[float]) -> dict[str, float]:
        """`sums` are over as many optimizer steps as there are norms of the predictors' gradient."""
        chosen, steps, own = self.settings.curiosity, max(1, len(norms)), rollout.of(CuriosityRollout)
        learned = steps * self.settings.sizes.num_predictor_samples
        columns = {
            "intrinsic_reward": float(own.intrinsic_reward.mean(dtype=np.float64)),
            "intrinsic_reward_scaled": float(self.scaled.mean(dtype=np.float64)),
            "intrinsic_return": float(self.rewards.running.mean()),
            **{
                f"{name}_loss": getattr(sums, f"{name}_loss") / learned for name in MODELS[chosen.kind].LOSSES
            },
            "predictor_grad_norm": plain_sum(norms) / steps,
        }
        if self.is_episodic:
            size = rollout.of(EpisodicRollout).episodic_size
            columns["episodic_memory_size"] = float(size.mean(dtype=np.float64))
        if chosen.num_values == 2:
            columns["intrinsic_value_loss"] = sums.intrinsic_value_loss / (
                steps * self.settings.sizes.batch_size
            )
            columns["intrinsic_explained_variance"] = explained_variance(
                value=own.intrinsic_value[:-1], target_return=own.intrinsic_return
            )
        return columns


def intrinsic_advantages(
    *, reward: np.ndarray, value: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """[T, E] from values [T + 1, E]. An episode's end does not end them: dying must not look like less novelty."""
    nothing = np.zeros_like(reward)
    return generalized_advantages(
        reward=reward,
        value=value,
        episode_start=np.zeros_like(value),
        truncated=nothing,
        final_value=nothing,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
