"""Evaluation on a pool's workers, and the train/test gap during training."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.playing import LEVEL_SETS, Played, has_unseen_levels, num_slices, unseen
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.tasks import EVALUATE, Task


def evaluate(
    pool: Pool, memory: Memory, settings: Settings, *, level_sets: Sequence[str], iteration: int
) -> dict[str, list[Played]]:
    """The episodes of each set of levels, in the order of their slots."""
    slices = range(num_slices(settings.evaluation.num_episodes))
    pool.run(
        [Task(EVALUATE, index, iteration, LEVEL_SETS.index(name)) for name in level_sets for index in slices]
    )
    return {
        name: [Played(*row) for row in memory.evaluation[LEVEL_SETS.index(name)].tolist()]
        for name in level_sets
    }


def evaluate_if_due(state: TrainingState, pool: Pool, phase: Callable[[str], None]) -> dict[str, float]:
    """The columns of an evaluation of the policy as it is now; empty when none is due."""
    settings, iteration = state.settings, state.counters.iteration
    interval = settings.evaluation.interval
    if interval is None or iteration % interval:
        return {}
    phase("evaluate")
    began = time.monotonic()
    level_sets = LEVEL_SETS if has_unseen_levels(settings.env) else LEVEL_SETS[:1]
    results = evaluate(pool, state.memory, settings, level_sets=level_sets, iteration=iteration)
    means = {
        name: float(np.mean([episode.episode_return for episode in unseen(results[name])]))
        for name in level_sets
    }
    columns = {f"eval_{name}_return": mean for name, mean in means.items()}
    if "test" in means:
        columns["eval_gap"] = means["train"] - means["test"]
    return columns | {"t_eval": time.monotonic() - began}
