"""The loop; nothing else."""

import time

from parallel_ppo.budget import Budget
from parallel_ppo.config import Settings
from parallel_ppo.episodes import finished_episodes
from parallel_ppo.generalization import evaluate_if_due
from parallel_ppo.pool import Pool
from parallel_ppo.recorder import Iteration, Recorder
from parallel_ppo.signals import Signals
from parallel_ppo.state import Snapshot, TrainingState
from parallel_ppo.update import scheduled, update
from parallel_ppo.worker import Collect


class Coordinator:
    """Owns the run's clock and order of events. `snapshot` is always a state that can be saved and resumed."""

    def __init__(
        self,
        settings: Settings,
        state: TrainingState,
        pool: Pool,
        budget: Budget,
        recorder: Recorder,
        signals: Signals,
    ) -> None:
        self.settings, self.state, self.pool = settings, state, pool
        self.budget, self.recorder, self.signals = budget, recorder, signals
        self.snapshot: Snapshot = state.snapshot()
        self.earlier_restarts = state.counters.worker_restarts

    def train(self) -> str:
        """Runs until a budget is spent and returns which one. Leaves by an exception with `snapshot` intact."""
        self.recorder.save(self.snapshot)
        self.budget.start(self.state.counters)
        while (reason := self.budget.spent(self.state.counters)) is None:
            self.signals.check()
            finished = self.iterate()
            self.recorder.record(self.state, self.pool, finished)
            self.recorder.phase("snapshot")
            self.snapshot = self.state.snapshot()
            self.recorder.save_if_due(self.snapshot)
        return reason

    def iterate(self) -> Iteration:
        state, counters, shape = self.state, self.state.counters, self.settings.shape
        schedules = scheduled(self.settings, env_steps=counters.env_steps, wall_time=counters.wall_time)
        began = time.monotonic()
        self.recorder.phase("collect")
        spans = self.pool.run(Collect(index, counters.iteration) for index in range(shape.num_slices))
        collected = time.monotonic()
        self.recorder.phase("update")
        result = update(state, self.pool, schedules)
        learned = time.monotonic()
        self.recorder.phase("episodes")
        episodes = finished_episodes(state, state.memory)
        counters.iteration += 1
        counters.env_steps += shape.steps_per_iteration
        counters.bit_exact &= self.pool.exact
        evaluated = evaluate_if_due(state, self.pool, self.recorder.phase)
        counters.wall_time = self.budget.elapsed()
        counters.worker_restarts = self.earlier_restarts + self.pool.restarts
        self.pool.iteration_done()
        timing = began, collected, learned, result.phases
        return Iteration(episodes, result.columns, evaluated, *timing, spans + result.spans)
