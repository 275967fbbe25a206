"""When the workers collect: before the update, during the end of the earlier iteration, or ahead with a lag."""

from parallel_ppo.training.optimizer_steps import write_order
from parallel_ppo.training.run import Run
from parallel_ppo.workers.tasks import COLLECT, Span, Task


def collect(run: Run, iteration: int) -> list[Span]:
    """Returns when the iteration's rollout is complete. With a lag, later ones begin before this one is learned."""
    slices, lag = run.cluster.slices, run.settings.sizes.lag
    if not lag:
        tasks = [Task(COLLECT, index, iteration) for index in slices]
        run.pool.begin(tasks)
        write_order(run.state)
        return run.pool.run(tasks)
    ahead = range(max(iteration, run.begun), iteration + lag + 1)
    run.pool.start(Task(COLLECT, index, later) for later in ahead for index in slices)
    run.begun = ahead.stop
    write_order(run.state)
    return run.pool.finish([Task(COLLECT, index, iteration) for index in slices])


def collect_early(run: Run) -> None:
    """The workers begin the next iteration while this process records, copies and saves the last one."""
    counters, sizes = run.state.counters, run.settings.sizes
    if not sizes.lag and run.budget.allows_another(counters):
        run.pool.begin([Task(COLLECT, index, counters.iteration) for index in run.cluster.slices])
