"""Which rollouts are asked for, and when: one after the other, or with a lag some ahead of the update."""

from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.span import Span
from parallel_ppo.workers.tasks import Collect


class Collecting:
    def __init__(self, pool: Pool, cluster: Cluster, lag: int) -> None:
        self.pool, self.slices, self.lag = pool, cluster.slices, lag
        self.begun = 0  # iterations below this one have been asked for

    def collect(self, iteration: int) -> list[Span]:
        """Returns when the iteration's rollout is there. Later ones begin as soon as their parameters are."""
        if not self.lag:
            return self.pool.run(Collect(index, iteration) for index in self.slices)
        ahead = range(max(iteration, self.begun), iteration + self.lag + 1)
        self.pool.start(Collect(index, later) for later in ahead for index in self.slices)
        self.begun = ahead.stop
        return self.pool.finish([Collect(index, iteration) for index in self.slices])
