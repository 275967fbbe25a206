"""V-trace: targets for samples that an older policy collected. IMPALA and APPO learn from them. T steps,
E environments.

`value` and `log_prob` are those of the collecting policy; the learner's, recomputed before the update
(`Revalue` tasks), are `learner_value` and `learner_log_prob`. Where both policies are one, the targets
are lambda-1 returns.
"""

from typing import NamedTuple

import numpy as np

from parallel_ppo.algorithms import a2c, ppo
from parallel_ppo.algorithms.algorithm import Algorithm
from parallel_ppo.kernels import numerics
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.settings.schema import TrainingSettings


class Targets(NamedTuple):
    target_return: np.ndarray  # [T, E] what the value should be
    advantage: np.ndarray  # [T, E] of the action, before it is weighed by the ratio of the policies
    ratio: np.ndarray  # [T, E] learner's over collector's probability of the action


def vtrace(
    *,
    reward: np.ndarray,
    value: np.ndarray,
    log_ratio: np.ndarray,
    episode_start: np.ndarray,
    truncated: np.ndarray,
    final_value: np.ndarray,
    gamma: float,
    rho_clip: float,
    c_clip: float,
) -> Targets:
    """`value` (the learner's) and `episode_start` have one row more than there are steps."""
    num_steps, num_envs = reward.shape
    assert value.shape == episode_start.shape == (num_steps + 1, num_envs)
    assert log_ratio.shape == truncated.shape == final_value.shape == reward.shape
    ratio = numerics.exp(log_ratio)
    rho, c = np.minimum(ratio, np.float32(rho_clip)), np.minimum(ratio, np.float32(c_clip))
    ends, cut, gamma32 = episode_start[1:].astype(bool), truncated.astype(bool), np.float32(gamma)
    bootstrap = np.where(cut, final_value, np.where(ends, np.float32(0), value[1:]))
    delta = rho * (reward + gamma32 * bootstrap - value[:-1])
    carry = np.where(ends, np.float32(0), gamma32 * c)
    correction = np.zeros((num_steps + 1, num_envs), np.float32)  # of the value towards its target
    for t in range(num_steps - 1, -1, -1):
        correction[t] = delta[t] + carry[t] * correction[t + 1]
    target = value + correction
    following = np.where(ends, bootstrap, target[1:])
    return Targets(target[:-1], reward + gamma32 * following - value[:-1], ratio)


def _targets(rollout: RolloutBuffer, reward: np.ndarray, training: TrainingSettings) -> Targets:
    return vtrace(
        reward=reward,
        value=rollout.learner_value,
        log_ratio=rollout.learner_log_prob - rollout.log_prob,
        episode_start=rollout.episode_start,
        truncated=rollout.truncated,
        final_value=rollout.final_value,
        gamma=training.gamma,
        rho_clip=training.vtrace_rho_clip,
        c_clip=training.vtrace_c_clip,
    )


def impala_targets(rollout: RolloutBuffer, reward: np.ndarray, training: TrainingSettings) -> None:
    """The advantage carries the clipped ratio: the loss itself is that of an actor-critic."""
    found = _targets(rollout, reward, training)
    weight = np.minimum(found.ratio, np.float32(training.vtrace_policy_rho_clip))
    rollout.advantage[:], rollout.target_return[:] = weight * found.advantage, found.target_return


def appo_targets(rollout: RolloutBuffer, reward: np.ndarray, training: TrainingSettings) -> None:
    """PPO's clipped ratio is part of the loss, so the advantage does not carry it a second time."""
    found = _targets(rollout, reward, training)
    rollout.advantage[:], rollout.target_return[:] = found.advantage, found.target_return


IMPALA = Algorithm(impala_targets, ppo.scalars, a2c.loss, a2c.loss_gradient, revalues=True)
APPO = Algorithm(appo_targets, ppo.scalars, ppo.loss, ppo.loss_gradient, revalues=True)
