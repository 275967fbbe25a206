"""Whole iterations of a recurrent policy beside an independent PPO with torch's own LSTM."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parallel_ppo.algorithms.algorithm import Schedules
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.update import learn
from parallel_ppo.workers.tasks import COLLECT, Task
from tests.conftest import small_settings
from tests.training.test_update import collected, published_advantages

NATIVE = unusable("mlp", (4,), [64]) is None
RATE, CLIP = 1e-3, 0.2


class Plain(nn.Module):
    """Two layers, torch's LSTM and two heads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.cell = nn.LSTM(64, size)
        self.action_head, self.value_head = nn.Linear(size, 2), nn.Linear(size, 1)

    def forward(self, observation: torch.Tensor, start: torch.Tensor, state: Any) -> tuple:
        """[T, E, 4] and [T, E] -> logits, values and the state after the last step."""
        found = []
        for row, begins in zip(observation, start, strict=True):
            state = tuple(part * (1 - begins)[None, :, None] for part in state)
            output, state = self.cell(self.trunk(row)[None], state)
            found.append(output[0])
        features = torch.stack(found)
        return self.action_head(features), self.value_head(features).squeeze(-1), state


def plain_iteration(model: Plain, optimizer: Any, rollout: Any, state: Any, training: Any) -> Any:
    observation = torch.from_numpy(rollout.observation)
    start = torch.from_numpy(rollout.episode_start.astype(np.float32))
    with torch.no_grad():
        after = model(observation[:-1], start[:-1], state)[2]
    advantage = torch.from_numpy(published_advantages(rollout, training.gamma, training.gae_lambda))
    returns = advantage + torch.from_numpy(rollout.value[:-1])
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    for _ in range(training.n_epochs):
        logits, value, _ = model(observation[:-1], start[:-1], state)
        chosen = torch.distributions.Categorical(logits=logits)
        ratio = (
            chosen.log_prob(torch.from_numpy(rollout.action[..., 0])) - torch.from_numpy(rollout.log_prob)
        ).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        loss = (
            -surrogate.mean()
            + training.value_coef / 2 * (value - returns).square().mean()
            - training.entropy_coef * chosen.entropy().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
    return after


@pytest.mark.parametrize(
    "kernels", ["torch", pytest.param("native", marks=pytest.mark.skipif(not NATIVE, reason="native"))]
)
def test_four_iterations_are_those_of_a_plain_ppo_lstm(kernels: str) -> None:
    settings = small_settings(
        recurrence__kind="lstm", recurrence__size=16, recurrence__sequence_length=16, training__kernels=kernels,
        training__batch_size=256, training__n_epochs=3, training__normalize_rewards=False,
        training__clip_value_loss=False, env__kwargs={"max_episode_steps": 12},
    )  # fmt: skip
    state, pool, policy = collected(settings)
    plain = Plain(16)
    ours = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    for (_, theirs), name in zip(plain.named_parameters(), ours, strict=True):
        assert theirs.shape == ours[name].shape
        theirs.data.copy_(ours[name])
    optimizer = torch.optim.Adam(plain.parameters(), RATE, eps=settings.training.adam_eps)
    memory: Any = (torch.zeros(1, 16, 16), torch.zeros(1, 16, 16))
    begun, cut = state.parameters.clone(), 0
    for iteration in range(4):
        if iteration:
            pool.run(Task(COLLECT, index, iteration) for index in range(settings.sizes.num_slices))
        rollout = state.memory.rollout(iteration)
        cut += int(rollout.truncated.sum())
        memory = plain_iteration(plain, optimizer, rollout, memory, settings.training)
        learn(state, pool, Cluster(settings.sizes), Schedules(RATE, CLIP), Timeline())
        state.counters.iteration += 1
        carried = torch.from_numpy(state.memory.hidden[state.memory.slot(iteration + 1)])
        torch.testing.assert_close(carried, torch.cat([part[0] for part in memory], 1), rtol=0, atol=1e-5)
    pool.close()
    assert cut and float((state.parameters - begun).abs().max()) > 5e-3
    for parameter, expected in zip(ours.values(), plain.parameters(), strict=True):
        assert float((parameter - expected.detach()).abs().max()) < 1e-5
