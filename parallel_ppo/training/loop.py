"""The loop; nothing else."""

import time

from parallel_ppo.cluster.cluster import NodeReport
from parallel_ppo.features.schedules import scheduled
from parallel_ppo.training.live_evaluation import evaluate_if_due
from parallel_ppo.training.run import Iteration, Run
from parallel_ppo.training.update import learn
from parallel_ppo.workers.tasks import COLLECT, WARM_UP, Span, Task


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
    spans = _collect(run, counters.iteration)
    collected = time.monotonic()
    run.recorder.show("update")
    result = learn(state, run.pool, run.cluster, now, run.recorder.timeline)
    learned = time.monotonic()
    run.recorder.phase("episodes")
    episodes = state.finish_episodes()
    counters.iteration += 1
    counters.env_steps += run.settings.sizes.steps_per_iteration
    evaluated = evaluate_if_due(state, run.pool, run.recorder.phase)
    report = NodeReport.of(run.pool, run.budget.elapsed(), began, collected, learned)
    run.reports = run.cluster.close_iteration(report)
    counters.bit_exact &= all(report.exact for report in run.reports)
    counters.wall_time = run.reports[0].elapsed
    counters.worker_restarts = run.earlier_restarts + sum(report.restarts for report in run.reports)
    run.pool.iteration_done()
    times = began, collected, learned
    return Iteration(episodes, result.columns, evaluated, *times, spans + result.spans, run.reports)


def _collect(run: Run, iteration: int) -> list[Span]:
    """Returns when the iteration's rollout is complete. With a lag, later ones begin before this one is learned."""
    slices, lag = run.cluster.slices, run.settings.sizes.lag
    if not lag:
        return run.pool.run(Task(COLLECT, index, iteration) for index in slices)
    ahead = range(max(iteration, run.begun), iteration + lag + 1)
    run.pool.start(Task(COLLECT, index, later) for later in ahead for index in slices)
    run.begun = ahead.stop
    return run.pool.finish([Task(COLLECT, index, iteration) for index in slices])


def _warm_up(run: Run) -> None:
    """Once per run, before its first iteration."""
    curiosity = run.state.curiosity
    if curiosity is not None and curiosity.needs_warm_up:
        run.recorder.show("warm-up")
        run.pool.run(Task(WARM_UP, index) for index in run.cluster.slices)
        curiosity.warmed_up(run.cluster)
        run.snapshot = run.state.snapshot()
