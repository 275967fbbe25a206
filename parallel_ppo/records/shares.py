"""Where an iteration's time went: the share of each phase, and of each worker's time the share in which
it had nothing to do.
"""

from typing import Any, Protocol

from parallel_ppo.records.timeline import Phase
from parallel_ppo.workers.tasks import COLLECT, Span


class Timed(Protocol):
    """An iteration's bounds on the monotonic clock and what the workers did in it."""

    @property
    def began(self) -> float: ...

    @property
    def collected(self) -> float: ...

    @property
    def learned(self) -> float: ...

    @property
    def spans(self) -> list[Span]: ...


def phase_shares(phases: list[Phase], *, t_rollout: float, t_iter: float) -> dict[str, float]:
    """Disjoint, and 1 in sum: in `share_coordinator` only the coordinator works."""

    def total(*names: str) -> float:
        return sum(phase.ended - phase.started for phase in phases if phase.name in names)

    shares = {
        "share_collect": t_rollout / t_iter,
        "share_gradients": total("revalue", "gradients") / t_iter,
        "share_reduce": total("reduce") / t_iter,
        "share_exchange": total("gather", "exchange") / t_iter,
    }
    return shares | {"share_coordinator": max(0.0, 1 - sum(shares.values()))}


def idle_shares(timed: Timed, num_workers: int) -> dict[str, Any]:
    """Of collection and update separately: the mean over the workers and the worst of them; of both
    together, each worker's.
    """
    collecting, updating = [0.0] * num_workers, [0.0] * num_workers
    for span in timed.spans:
        busy = collecting if span.task.kind == COLLECT else updating
        busy[span.worker] += span.seconds
    collect, update = timed.collected - timed.began, timed.learned - timed.collected
    both = [_idle(sum(pair), collect + update) for pair in zip(collecting, updating, strict=True)]
    return {
        "idle_collect": _idle(sum(collecting) / num_workers, collect),
        "idle_collect_worst": _idle(min(collecting), collect),
        "idle_update": _idle(sum(updating) / num_workers, update),
        "idle_update_worst": _idle(min(updating), update),
        "idle_workers": [round(share, 4) for share in both],
    }


def _idle(busy: float, available: float) -> float:
    return max(0.0, 1 - busy / available) if available > 0 else 0.0
