"""The loop; nothing else."""

import time

from parallel_ppo.cluster.protocol import Cluster, NodeReport
from parallel_ppo.features.schedules import scheduled
from parallel_ppo.machine.signals import Signals
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.budget import Budget
from parallel_ppo.training.collecting import Collecting
from parallel_ppo.training.live_evaluation import evaluate_if_due
from parallel_ppo.training.recorder import Iteration, Records
from parallel_ppo.training.state import TrainingState
from parallel_ppo.training.update import learn
from parallel_ppo.workers.pool import Pool


class Coordinator:
    """Owns the run's clock and order of events. `snapshot` can always be saved and resumed."""

    def __init__(
        self,
        settings: Settings,
        state: TrainingState,
        pool: Pool,
        cluster: Cluster,
        budget: Budget,
        recorder: Records,
        signals: Signals,
    ) -> None:
        self.settings, self.state, self.pool, self.cluster = settings, state, pool, cluster
        self.budget, self.recorder, self.signals = budget, recorder, signals
        self.snapshot: Snapshot = state.snapshot()
        self.reports: list[NodeReport] = []
        self.collecting = Collecting(pool, cluster, settings.shape.lag)
        self.earlier_restarts = state.counters.worker_restarts

    def train(self) -> str:
        """Runs until a budget is spent; returns which. Leaves by an exception with `snapshot` intact."""
        self.recorder.save(self.snapshot)
        self.budget.start(self.state.counters)
        while (reason := self.cluster.decide(self.budget.spent(self.state.counters))) is None:
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
        spans = self.collecting.collect(counters.iteration)
        collected = time.monotonic()
        self.recorder.show("update")
        result = learn(state, self.pool, self.cluster, schedules, self.recorder.timeline)
        learned = time.monotonic()
        self.recorder.phase("episodes")
        episodes = state.finish_episodes()
        counters.iteration += 1
        counters.env_steps += shape.steps_per_iteration
        evaluated = evaluate_if_due(state, self.pool, self.recorder.phase)
        report = NodeReport.of(self.pool, self.budget.elapsed(), began, collected, learned)
        self.reports = self.cluster.close_iteration(report)
        counters.bit_exact &= all(report.exact for report in self.reports)
        counters.wall_time = self.reports[0].elapsed
        counters.worker_restarts = self.earlier_restarts + sum(report.restarts for report in self.reports)
        self.pool.iteration_done()
        spans += result.spans
        times = began, collected, learned
        return Iteration(episodes, result.columns, evaluated, *times, spans, self.reports)
