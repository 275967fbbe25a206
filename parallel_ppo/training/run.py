"""Everything that one session of a run works with. `session.py` fills it in, `loop.py` drives it."""

from typing import NamedTuple, Protocol

from parallel_ppo.cluster.cluster import Cluster, NodeReport
from parallel_ppo.features.episodes import Episode
from parallel_ppo.machine.signals import Signals
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.records.display import Display
from parallel_ppo.records.metrics import ResourceMeter
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.budget import Budget
from parallel_ppo.training.planning import Plan
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import Pool
from parallel_ppo.workers.tasks import Span


class Iteration(NamedTuple):
    """The results of one iteration, when its phases ended on the monotonic clock, and what the workers did."""

    episodes: list[Episode]
    columns: dict[str, float]
    evaluation: dict[str, float]  # empty where none was due
    began: float
    collected: float
    learned: float
    spans: list[Span]
    nodes: list[NodeReport]


class Records(Protocol):
    """The interface of the first node's `Recorder` and the other nodes' `Follower`."""

    meter: ResourceMeter
    timeline: Timeline  # of the run: every phase is entered here
    checkpoint_seconds: float
    startup_seconds: float | None

    def show(self, name: str) -> None: ...

    def phase(self, name: str) -> None: ...

    def record(self, finished: Iteration) -> None: ...

    def save_if_due(self, snapshot: Snapshot) -> None: ...

    def save(self, snapshot: Snapshot) -> bool: ...

    def save_final(self, snapshot: Snapshot, name: str) -> None: ...

    def close(self) -> None: ...


class Run:
    """`snapshot` can always be saved and resumed."""

    pool: Pool
    recorder: Records
    snapshot: Snapshot
    earlier_restarts: int  # of workers, in earlier sessions

    def __init__(self, plan: Plan, cluster: Cluster, signals: Signals, display: Display) -> None:
        """Without workers and records, which need a state to start from."""
        self.plan, self.cluster, self.signals, self.display = plan, cluster, signals, display
        self.settings, self.policy = plan.settings, Policy(plan.settings, plan.spec)
        self.memory = Memory(plan.settings, plan.spec, num_flat(self.policy))
        self.state = TrainingState(plan.settings, self.memory)
        bind(self.policy, self.state.parameters)
        self.budget = Budget(plan.settings.training)
        self.reports: list[NodeReport] = []
        self.begun = 0  # iterations below this one have been handed to the workers for collection
