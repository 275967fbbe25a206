"""The loop; nothing else."""

import time

from parallel_ppo.cluster.cluster import NodeReport
from parallel_ppo.features.schedules import scheduled
from parallel_ppo.training.collecting import collect, collect_early
from parallel_ppo.training.live_evaluation import evaluate_if_due
from parallel_ppo.training.run import Iteration, Run
from parallel_ppo.training.update import learn
from parallel_ppo.workers.tasks import WARM_UP, Task


def train(run: Run) -> str:
    """Runs until a budget is spent; returns which. Leaves by an exception with `run.snapshot` intact."""
    _warm_up(run)
    run.recorder.save(run.snapshot)
    run.budget.start(run.state.counters)
    while (reason := run.cluster.decide(run.budget.spent(run.state.counters))) is None:
        run.signals.check()
        finished = iterate(run)
        run.recorder.record(finished)
        run.recorder.phase("snapshot")
        run.snapshot = run.state.snapshot()
        run.recorder.save_if_due(run.snapshot)
    return reason


def iterate(run: Run) -> Iteration:
    state, counters = run.state, run.state.counters
    now = scheduled(run.settings, env_steps=counters.env_steps, wall_time=counters.wall_time)
    began = time.monotonic()
    run.recorder.phase("collect")
    spans = collect(run, counters.iteration)
    collected = time.monotonic()
    run.recorder.show("update")
    result = learn(state, run.pool, run.cluster, now, run.recorder.timeline)
    learned = time.monotonic()
    run.recorder.phase("episodes")
    episodes = state.finish_episodes()
    counters.iteration += 1
    counters.env_steps += run.settings.sizes.steps_per_iteration
    evaluated = evaluate_if_due(state, run.pool, run.recorder.phase)
    collect_early(run)
    report = NodeReport.of(run.pool, run.budget.elapsed(), began, collected, learned)
    run.reports = run.cluster.close_iteration(report)
    counters.bit_exact &= all(report.exact for report in run.reports)
    counters.wall_time = run.reports[0].elapsed
    counters.worker_restarts = run.earlier_restarts + sum(report.restarts for report in run.reports)
    run.pool.iteration_done()
    times = began, collected, learned
    return Iteration(episodes, result.columns, evaluated, *times, spans + result.spans, run.reports)


def _warm_up(run: Run) -> None:
    """Once per run, before its first iteration."""
    curiosity = run.state.curiosity
    if curiosity is not None and curiosity.needs_warm_up:
        run.recorder.show("warm-up")
        run.pool.run(Task(WARM_UP, index) for index in run.cluster.slices)
        curiosity.warmed_up(run.cluster)
        run.snapshot = run.state.snapshot()
