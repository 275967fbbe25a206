"""What limited a run, and which setting would help: one line, from what its iterations recorded."""

from typing import Any, NamedTuple

from parallel_ppo.settings.schema import Shape

NOTABLE = 0.1  # a loss below this share of the time is not worth a word
CHECKPOINTS = 0.05
STARVED = 0.85  # of the CPU time that busy workers should have had


class Circumstances(NamedTuple):
    """What the records do not tell."""

    shape: Shape
    num_workers: int
    num_cores: int
    is_parallel: bool
    checkpoint_share: float


class Tally:
    """Means over the iterations of a session, weighted by their time."""

    def __init__(self) -> None:
        self.seconds = self.measured = self.cpu = 0.0
        self.sums: dict[str, float] = {}

    def add(self, record: dict[str, Any]) -> None:
        weight = record["t_iter"]
        self.seconds += weight
        for name, value in record.items():
            if name.startswith(("share_", "idle_")) and isinstance(value, (int, float)):
                self.sums[name] = self.sums.get(name, 0.0) + weight * value
        if record["cpu_percent"]:  # 0 until there are two samples
            self.measured += weight
            self.cpu += weight * record["cpu_percent"]

    def mean(self, name: str) -> float:
        return self.sums.get(name, 0.0) / self.seconds if self.seconds else 0.0

    @property
    def cpu_percent(self) -> float | None:
        return self.cpu / self.measured if self.measured else None


def limit(tally: Tally, around: Circumstances) -> str | None:
    """The largest avoidable loss if there is one, else the phase that took most of the time. None before the first iteration."""
    if not tally.seconds:
        return None
    losses = [
        loss
        for loss in (
            _oversubscribed(tally, around),
            _starved(tally, around),
            _uneven_slices(tally, around),
            _uneven_lanes(tally, around),
            _coordinator(tally, around),
            _exchange(tally),
            _checkpoints(around),
        )
        if loss is not None
    ]
    if losses:
        return max(losses)[1]
    return _arithmetic(tally, around)


Loss = tuple[float, str]  # the share of the time that is lost, and what to say of it


def _granted(tally: Tally, around: Circumstances) -> float | None:
    """Of the CPU time that the busy workers should have had, the share that they got."""
    expected = 100 * around.num_workers * (1 - tally.mean("idle_share"))
    return tally.cpu_percent / expected if tally.cpu_percent is not None and expected > 0 else None


def _oversubscribed(tally: Tally, around: Circumstances) -> Loss | None:
    if around.num_workers <= around.num_cores:
        return None
    lost = 1 - around.num_cores / around.num_workers
    return lost, (
        f"the cores: {around.num_workers} workers share {around.num_cores}; "
        f"--num-workers {around.num_cores} avoids the switching between them"
    )


def _starved(tally: Tally, around: Circumstances) -> Loss | None:
    granted = _granted(tally, around)
    if (
        not around.is_parallel
        or granted is None
        or granted >= STARVED
        or around.num_workers > around.num_cores
    ):
        return None
    return 1 - granted, (
        f"other programs: the workers got {granted:.0%} of the CPU time they could use; "
        f"fewer programs on these cores, a smaller --num-workers or a free list of CPUs in hardware.pinning helps"
    )


def _uneven_slices(tally: Tally, around: Circumstances) -> Loss | None:
    lost = tally.mean("share_collect") * tally.mean("idle_collect")
    if lost < NOTABLE:
        return None
    slices, workers = around.shape.num_slices, around.num_workers
    said = f"collection: workers had nothing to do for {tally.mean('idle_collect'):.0%} of it"
    if slices % workers:
        return lost, (
            f"{said}, because {slices} slices do not divide evenly over {workers} workers; "
            f"use --num-workers {_divisor(slices, workers)}, or (it changes the learning) a smaller env.slice_envs"
        )
    return (
        lost,
        f"{said}; more steps per iteration (--n-steps) make its waits rarer, at the price of another learning",
    )


def _uneven_lanes(tally: Tally, around: Circumstances) -> Loss | None:
    lost = tally.mean("share_gradients") * tally.mean("idle_update")
    if lost < NOTABLE:
        return None
    lanes, workers = around.shape.num_lanes, around.num_workers
    said = f"the update: workers had nothing to do for {tally.mean('idle_update'):.0%} of it"
    if lanes % workers:
        return lost, (
            f"{said}, because {lanes} lanes do not divide evenly over {workers} workers; "
            f"use --num-workers {_divisor(lanes, workers)}, or (it changes the learning) another training.lane_samples"
        )
    return (
        lost,
        f"{said}; a larger --batch-size (it changes the learning) gives each worker more between two waits",
    )


def _coordinator(tally: Tally, around: Circumstances) -> Loss | None:
    lost = tally.mean("share_coordinator")
    if not around.is_parallel or lost < NOTABLE:
        return None
    return lost, (
        f"the coordinator, which worked alone for {lost:.0%} of the time; "
        f"a larger --batch-size or --n-steps (both change the learning) makes its part smaller"
    )


def _exchange(tally: Tally) -> Loss | None:
    lost = tally.mean("share_exchange")
    if lost < NOTABLE:
        return None
    return lost, (
        f"the exchange with other nodes ({lost:.0%} of the time); "
        f"a faster network, equal nodes or (it changes the learning) a larger --batch-size makes it smaller"
    )


def _checkpoints(around: Circumstances) -> Loss | None:
    if around.checkpoint_share < CHECKPOINTS:
        return None
    return around.checkpoint_share, (
        f"checkpoints, {around.checkpoint_share:.0%} of the time; a longer logging.checkpoint_interval makes them rarer"
    )


def _arithmetic(tally: Tally, around: Circumstances) -> str:
    """Nothing is lost: the cores do what the settings ask of them."""
    collect = tally.mean("share_collect")
    if collect > 0.5:
        what = f"environments and inference ({collect:.0%} of the time)"
    else:
        what = f"the gradients' arithmetic ({tally.mean('share_gradients'):.0%} of the time)"
    if not around.is_parallel:
        return f"{what}; train_parallel_timed.py uses the cores better"
    if around.num_workers < around.num_cores:
        return f"{what}; {around.num_cores - around.num_workers} cores were not used: --num-workers {around.num_cores}"
    useful = max(around.shape.num_slices, around.shape.num_lanes)
    if collect > 0.5:
        return f"{what}, with all cores busy; more cores would help (up to {around.shape.num_slices} workers)"
    return (
        f"{what}, with all cores busy; more cores would help (up to {useful} workers), "
        "or (they change the learning) fewer --n-epochs or --policy nature"
    )


def _divisor(total: int, near: int) -> int:
    return min((n for n in range(1, total + 1) if total % n == 0), key=lambda n: (abs(n - near), -n))
