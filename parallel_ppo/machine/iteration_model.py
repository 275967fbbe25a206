"""A model of an iteration's time with another number of workers, for all advice on workers.

Collection consists of slices and the update of microbatches. One worker does a piece, so the worker with the most
pieces sets the time of a part, and computation is limited by the number of cores. The coordinator's work and the
exchange between nodes do not divide.
"""

from collections.abc import Callable
from typing import NamedTuple

MESSAGE = 1e-4  # seconds for a task and its answer: 36 us in the pipe, the rest in pool and worker
HAND_OVER = 1e-5  # seconds for an optimizer step that workers take without messages
WORTH_SAYING = 1.05  # the model cannot predict smaller gains
WORTH_PROCESSES = 1.15  # the least gain for which worker processes are started
NOTABLE = 0.1  # share of a part's time
WAITING = 0.75  # environments wait if they need a core for a smaller share of their time
UNLIMITED = 1 << 20


class Pieces(NamedTuple):
    """The pieces of an iteration's work."""

    slices: int
    microbatches: int  # of one minibatch
    updates: int  # optimizer steps
    is_asked: bool = True  # one message for each microbatch; otherwise workers take the steps themselves


class Iteration(NamedTuple):
    """Seconds of one iteration with `workers` workers (0: none), and the model's inputs."""

    collect: float
    learn: float
    coordinator: float  # while it works alone
    pieces: Pieces
    workers: int
    cores: int
    exchange: float = 0.0
    checkpoints: float = 0.0
    idle_collect: float = 0.0  # share of the part in which workers were idle
    idle_learn: float = 0.0
    is_measured: bool = False  # applies to the next three
    needs_core: float = 1.0  # share of a collecting worker's time
    core_taken: float = 0.0  # share of the workers' busy time in which other programs used their cores
    stolen: float = 0.0  # share of CPU time that the host gave to other virtual machines

    @property
    def total(self) -> float:
        return self.collect + self.learn + self.coordinator + self.exchange + self.checkpoints

    def seconds(self, workers: int) -> float:
        """The iteration's time with another number of workers."""
        collect = self.collect * self._collecting(workers) / self._collecting(self.workers)
        learn = self.learn * self._learning(workers) / self._learning(self.workers)
        talk = self._talk() * (bool(workers) - bool(self.workers))
        return self.total - self.collect - self.learn + collect + learn + talk

    def _talk(self) -> float:
        """The cost of messages to other processes."""
        pieces = self.pieces
        step = MESSAGE * (pieces.microbatches + 1) if pieces.is_asked else HAND_OVER
        return MESSAGE * pieces.slices + pieces.updates * step

    def gain(self, workers: int) -> float:
        return self.total / self.seconds(workers)

    def best(self) -> int:
        """The smallest number with the best time; more than the cores only if environments wait."""
        most = max(self.cores, self.pieces.slices if self.waits else 1)
        return min(range(1, most + 1), key=lambda workers: (round(self.seconds(workers), 6), workers))

    def _collecting(self, workers: int) -> float:
        return busiest(self.pieces.slices, workers, self.cores, self.needs_core if self.waits else 1.0)

    def _learning(self, workers: int) -> float:
        return busiest(self.pieces.microbatches, workers, self.cores)

    @property
    def waits(self) -> bool:
        return self.needs_core < WAITING


def busiest(pieces: int, workers: int, cores: int = UNLIMITED, needs_core: float = 1.0) -> float:
    """The busiest worker's share of evenly divided pieces, or the busiest core's share if that is larger."""
    workers = max(1, workers)
    return max(-(-pieces // workers) / pieces, needs_core / min(workers, cores))


def from_records(
    mean: Callable[[str], float], pieces: Pieces, *, workers: int, cores: int, checkpoints: float = 0.0
) -> Iteration:
    """`mean` gives the mean of a column of metrics.jsonl; `checkpoints` is a share of the total time."""
    seconds, hands = mean("t_iter"), max(1, workers)
    collect, coordinator = mean("share_collect"), mean("share_coordinator")
    busy = hands * (1 - mean("idle_share")) + coordinator
    needs_core, taken, stolen = 1.0, 0.0, 0.0
    is_measured = mean("cpu_percent") > 0 and mean("cpu_wait_percent") >= 0  # False if a column is missing
    if is_measured and collect > 0:
        taken, ran = mean("cpu_wait_percent") / 100, mean("cpu_percent") / 100
        stolen = min(0.99, mean("cpu_steal_percent") / 100) if mean("cpu_steal_percent") > 0 else 0.0
        # The update only computes: a busy worker that neither ran nor waited for a core was in a waiting
        # environment.
        waited = max(0.0, busy - ran / (1 - stolen) - taken)
        needs_core = max(0.01, 1 - waited / (hands * collect * max(0.01, 1 - mean("idle_collect"))))
    return Iteration(
        collect=seconds * collect,
        learn=seconds * (mean("share_gradients") + mean("share_reduce")),
        coordinator=seconds * coordinator,
        pieces=pieces,
        workers=workers,
        cores=cores,
        exchange=seconds * mean("share_exchange"),
        checkpoints=seconds * checkpoints / (1 - checkpoints),
        idle_collect=mean("idle_collect"),
        idle_learn=mean("idle_update"),
        is_measured=is_measured,
        needs_core=needs_core,
        core_taken=min(1.0, taken / busy) if busy > 0 else 0.0,
        stolen=stolen,
    )


def limited_by(iteration: Iteration) -> str:
    """The part that takes most of the time, the reason, and a remedy."""
    parts = {
        name: getattr(iteration, name)
        for name in ("collect", "learn", "coordinator", "exchange", "checkpoints")
    }
    part = max(parts, key=lambda name: parts[name])
    share = f"{parts[part] / iteration.total:.0%} of the time"
    if part == "coordinator":
        return (
            f"the coordinator, which worked alone for {share}; a larger --batch-size or --n-steps helps (both "
            "change what is learned)"
        )
    if part == "exchange":
        return (
            f"the exchange with other nodes ({share}); a faster network, equal nodes "
            "or a larger --batch-size (which changes what is learned) helps"
        )
    if part == "checkpoints":
        return f"checkpoints ({share}); a longer logging.checkpoint_interval helps"
    is_collect = part == "collect"
    what = f"{'environments and inference' if is_collect else 'the arithmetic of the gradients'} ({share})"
    return f"{what}{_why(iteration, is_collect)}; {_remedy(iteration, is_collect)}"


def _why(iteration: Iteration, is_collect: bool) -> str:
    idle = iteration.idle_collect if is_collect else iteration.idle_learn
    if iteration.core_taken > 1 - WAITING and iteration.workers <= iteration.cores:
        return f": other programs ran on this run's cores for {iteration.core_taken:.0%} of the time"
    if iteration.stolen > NOTABLE:
        return f": the host of this virtual machine gave {iteration.stolen:.0%} of the CPU time to others"
    if is_collect and iteration.waits:
        return (
            f": the environments wait, and collecting needs a core for {iteration.needs_core:.0%} of the time"
        )
    if idle > NOTABLE and iteration.workers:
        who = "workers" if iteration.workers > 1 else "the worker"
        return f": {who} had nothing to do for {idle:.0%} of it"
    if iteration.workers >= iteration.cores and iteration.is_measured:
        return ", with all cores busy"
    return ""


def _remedy(iteration: Iteration, is_collect: bool) -> str:
    workers, best = iteration.workers, iteration.best()
    gain = iteration.gain(best)
    if iteration.core_taken > 1 - WAITING and workers <= iteration.cores:
        return "stop them, or reserve CPUs for this run with hardware.pinning"
    if gain > (WORTH_SAYING if workers else WORTH_PROCESSES):
        return f"--num-workers {best} should make an iteration {1 - 1 / gain:.0%} shorter"
    if not workers and iteration.cores > 1:
        return "worker processes would cost more in messages than they gain"
    pieces = iteration.pieces.slices if is_collect else iteration.pieces.microbatches
    if pieces <= max(1, workers) or (is_collect and iteration.waits):
        key = "env.slice_envs" if is_collect else "training.lane_samples"
        more = "more workers" if workers else "workers"
        return f"only smaller pieces (a smaller {key}, which changes what is learned) would let {more} help"
    if workers and pieces % workers:
        return (
            f"its {pieces} pieces do not divide evenly over {workers} workers, but no other number is faster "
            f"on {iteration.cores} cores"
        )
    return f"more cores would help (up to {pieces} workers)"
