"""Tests of collecting while the last iteration is recorded and saved."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.features.schedules import scheduled
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training import collecting, optimizer_steps
from parallel_ppo.training.budget import Budget
from parallel_ppo.training.state import Counters
from parallel_ppo.training.update import learn
from parallel_ppo.workers.tasks import COLLECT, Task
from tests.conftest import small_settings
from tests.training.test_update import collected


def test_an_early_collect_leaves_both_snapshots_whole() -> None:
    settings = small_settings("CartPole-v1")
    state, pool, _ = collected(settings)
    before = state.snapshot()
    now = scheduled(settings, env_steps=0, wall_time=0.0)
    learn(state, pool, Cluster(settings.sizes), now, Timeline())
    state.counters.iteration += 1
    after = state.snapshot()
    expected = before.sha256(), after.sha256()
    pool.run(Task(COLLECT, index, 1) for index in range(settings.sizes.num_slices))
    assert (before.sha256(), after.sha256()) == expected
    pool.close()


def test_the_order_is_written_once_for_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings("CartPole-v1")
    state, pool, _ = collected(settings)
    made = []
    epoch_order = optimizer_steps.epoch_order
    monkeypatch.setattr(optimizer_steps, "epoch_order", lambda *a: made.append(1) or epoch_order(*a))
    for iteration in (0, 0, 1):
        state.counters.iteration = iteration
        optimizer_steps.write_order(state)
        wanted = [epoch_order(state, epoch) for epoch in range(settings.sizes.num_epochs)]
        assert np.array_equal(state.memory.step_rows, wanted)
    assert len(made) == 2 * settings.sizes.num_epochs
    pool.close()


@pytest.mark.parametrize(
    ("values", "env_steps", "elapsed", "begins"),
    [
        ({"training__total_timesteps": 512}, 256, 0.0, True),
        ({"training__total_timesteps": 512}, 512, 0.0, False),
        ({"training__duration": 1.0}, 256, 3000.0, True),
        ({"training__duration": 1.0}, 256, 3595.0, False),  # an iteration takes 10 s
        ({"training__algorithm": "appo", "training__total_timesteps": 512}, 256, 0.0, False),
    ],
)
def test_collection_begins_early_only_if_another_iteration_follows(
    values: dict[str, Any], env_steps: int, elapsed: float, begins: bool
) -> None:
    settings, begun = small_settings("CartPole-v1", **values), list[Task]()
    budget = Budget(settings.training)
    budget.elapsed = lambda: elapsed  # type: ignore[method-assign]
    counters = Counters(iteration=1, env_steps=env_steps, wall_time=10.0)
    run = SimpleNamespace(
        settings=settings,
        budget=budget,
        state=SimpleNamespace(counters=counters),
        pool=SimpleNamespace(begin=begun.extend),
        cluster=SimpleNamespace(slices=range(2)),
    )
    collecting.collect_early(run)  # type: ignore[arg-type]
    assert begun == ([Task(COLLECT, 0, 1), Task(COLLECT, 1, 1)] if begins else [])
