"""Advantage actor-critic: PPO's targets, and a loss that does not look back at the policy that acted.

Its derivative in the outputs is PPO's where the ratio is 1, bit for bit; a test holds that. B samples, K
outputs.
"""

import numpy as np
import torch

from parallel_ppo.algorithms import ppo
from parallel_ppo.algorithms.algorithm import Algorithm, Sampled, Statistics
from parallel_ppo.kernels import numerics
from parallel_ppo.policies import head_derivatives, heads
from parallel_ppo.policies.network import Output, OutputGradient


def loss(output: Output, sampled: Sampled) -> Statistics:
    """The policy gradient, half the squared error of the value, and the entropy bonus."""
    batch, training, now = sampled.batch, sampled.training, ppo.Scalars(*sampled.scalars)
    taken = heads.evaluate(sampled.action, output.action, output.log_std, batch["action"])
    advantage = (batch["advantage"] - now.advantage_mean) * now.advantage_scale
    policy_loss = -(taken.log_prob * advantage).sum()
    value_loss = 0.5 * (output.value - batch["target_return"]).square().sum()
    entropy = taken.entropy.sum()
    total = policy_loss + training.value_coef * value_loss - training.entropy_coef * entropy
    return Statistics(total / sampled.batch_size, policy_loss, value_loss, entropy)


@np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite is found, and named, by the update
def loss_gradient(output: Output, sampled: Sampled) -> tuple[OutputGradient, Statistics]:
    """`loss` and its derivative in the outputs, written out."""
    batch = {name: rows.numpy() for name, rows in sampled.batch.items()}
    training, now = sampled.training, ppo.Scalars(*sampled.scalars)
    log_std = None if output.log_std is None else output.log_std.numpy()
    head = head_derivatives.differentiate(sampled.action, output.action.numpy(), log_std, batch["action"])
    advantage = (batch["advantage"] - np.float32(now.advantage_mean)) * np.float32(now.advantage_scale)
    error = output.value.numpy() - batch["target_return"]
    each = np.float32(1 / sampled.batch_size)
    action, by_log_std = head_derivatives.by_outputs(
        head, log_std, by_log_prob=advantage * -each, by_entropy=np.float32(-training.entropy_coef) * each
    )
    gradient = OutputGradient(
        torch.from_numpy(action),
        None if by_log_std is None else torch.from_numpy(by_log_std),
        torch.from_numpy(error * (np.float32(training.value_coef) * each)).unsqueeze(1),
    )
    policy_loss, entropy = -numerics.total(head.log_prob * advantage), numerics.total(head.entropy)
    value_loss = 0.5 * numerics.total(np.square(error))
    total = policy_loss + training.value_coef * value_loss - training.entropy_coef * entropy
    return gradient, Statistics(total / sampled.batch_size, policy_loss, value_loss, entropy)


A2C = Algorithm(ppo.targets, ppo.scalars, loss, loss_gradient)
