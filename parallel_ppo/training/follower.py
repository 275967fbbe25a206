"""What the nodes that do not lead tell: a line an iteration into their own log. Files of the run are the
first node's.
"""

from parallel_ppo.cluster.protocol import Cluster
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.records.display import Display
from parallel_ppo.records.metrics import ResourceMeter
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.recorder import Iteration
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.pool import Pool


class Follower:
    def __init__(self, cluster: Cluster, display: Display) -> None:
        self.cluster, self.display, self.timeline = cluster, display, Timeline()
        self.meter, self.checkpoint_seconds = ResourceMeter(), 0.0
        self.startup_seconds: float | None = None

    def show(self, name: str) -> None:
        self.display.phase(name)

    def phase(self, name: str) -> None:
        self.show(name)

    def record(self, state: TrainingState, pool: Pool, finished: Iteration) -> None:
        self.timeline.take()
        own = finished.nodes[self.cluster.node.rank]
        self.display.note(
            f"iteration {state.counters.iteration}  step {state.counters.env_steps:,}  collect"
            f" {own.t_rollout:.2f} s  update {own.t_learn:.2f} s  waited {own.t_wait:.2f} s  transfer"
            f" {own.t_transfer:.2f} s"
        )

    def save_if_due(self, snapshot: Snapshot) -> None:
        if self.cluster.decide(None):
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> bool:
        self.phase("checkpoint")
        self.cluster.gather_environments(snapshot.environments)
        return True

    def save_final(self, snapshot: Snapshot, name: str) -> None:
        pass

    def close(self) -> None:
        pass
