"""Evaluation on a pool's workers, and the live train/test gap: what it asks of them and what becomes of the answers."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.playing import PARTS, Played, has_unseen_levels, num_slices
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.worker import Evaluate


def evaluate(
    pool: Pool, memory: Memory, settings: Settings, *, parts: Sequence[str], iteration: int
) -> dict[str, list[Played]]:
    """The episodes of each part, in the order of their slots."""
    slices = range(num_slices(settings.evaluation.num_episodes))
    pool.run([Evaluate(PARTS.index(part), index, iteration) for part in parts for index in slices])
    return {part: [Played(*row) for row in memory.evaluation[PARTS.index(part)].tolist()] for part in parts}


def evaluate_if_due(state: TrainingState, pool: Pool, phase: Callable[[str], None]) -> dict[str, float]:
    """The columns of an evaluation of the policy as it is now; empty when none is due."""
    settings, iteration = state.settings, state.counters.iteration
    interval = settings.evaluation.interval
    if interval is None or iteration % interval:
        return {}
    phase("evaluate")
    began = time.monotonic()
    parts = PARTS if has_unseen_levels(settings.env) else PARTS[:1]
    results = evaluate(pool, state.memory, settings, parts=parts, iteration=iteration)
    means = {part: float(np.mean([episode.episode_return for episode in results[part]])) for part in parts}
    columns = {f"eval_{part}_return": mean for part, mean in means.items()}
    if "test" in means:
        columns["eval_gap"] = means["train"] - means["test"]
    return columns | {"t_eval": time.monotonic() - began}
