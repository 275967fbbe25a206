"""When a run is over: steps, time or a callback, whichever comes first. Time is monotonic and cumulative
over resumes.
"""

import time
from collections import deque

from parallel_ppo.exits import RunError
from parallel_ppo.settings.schema import TrainingSettings
from parallel_ppo.training.state import Counters

RECENT = 8  # iterations: the present speed is their mean


class Budget:
    def __init__(self, training: TrainingSettings) -> None:
        self.steps = training.total_timesteps
        self.seconds = training.duration * 3600 if training.duration is not None else None
        self.stopped: str | None = None
        self.failure: RunError | None = None
        self.start(Counters())

    def start(self, counters: Counters) -> None:
        """The clock runs from the first collect."""
        self.before, self.started = counters.wall_time, time.monotonic()
        self.ends: deque[float] = deque(maxlen=RECENT + 1)  # elapsed seconds between iterations

    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.started

    def stop(self, reason: str) -> None:
        """A callback asks to end the run here; the first reason counts."""
        self.stopped = self.stopped or reason

    def fail(self, error: RunError) -> None:
        """Stops the run; the error is raised when the run is saved."""
        self.failure = self.failure or error
        self.stop(str(error))

    def spent(self, counters: Counters) -> str | None:
        """Called between two iterations. Stops if another iteration would overshoot the time budget by more than
        stopping now undershoots it.
        """
        elapsed = self.elapsed()
        self.ends.append(elapsed)
        if self.stopped is not None:
            return self.stopped
        if self.steps is not None and counters.env_steps >= self.steps:
            return "total_timesteps"
        if self.seconds is not None and self.seconds - elapsed <= self._iteration_seconds(counters) / 2:
            return "duration"
        return None

    def allows_another(self, counters: Counters) -> bool:
        """Is it certain, but for a callback, that another iteration follows?"""
        if self.stopped is not None or (self.steps is not None and counters.env_steps >= self.steps):
            return False
        return self.seconds is None or self.seconds - self.elapsed() > self._iteration_seconds(counters)

    def progress(self, counters: Counters) -> tuple[float, float | None]:
        """Share of the budget that is used, and the seconds left at the present speed. May be called at
        any time.
        """
        elapsed, shares, left = self.elapsed(), list[float](), list[float]()
        if self.seconds is not None:
            shares.append(elapsed / self.seconds)
            left.append(self.seconds - elapsed)
        if self.steps is not None:
            shares.append(counters.env_steps / self.steps)
            per_iteration = self._iteration_seconds(counters)
            if per_iteration:
                steps = counters.env_steps / counters.iteration
                since = elapsed - counters.wall_time
                left.append((self.steps - counters.env_steps) / steps * per_iteration - since)
        return min(1.0, max(shares)), max(0.0, min(left)) if left else None

    def _iteration_seconds(self, counters: Counters) -> float:
        """The mean over this session's last iterations, else over the run; 0 before the first."""
        if len(self.ends) > 1:
            return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        return counters.wall_time / counters.iteration if counters.iteration else 0.0


def schedule_warnings(training: TrainingSettings, counters: Counters) -> list[str]:
    """Warns of a linear schedule that ends before the run: nothing is learned after its end."""
    linear = [
        name for name in ("learning_rate", "clip_range") if getattr(training, f"{name}_schedule") == "linear"
    ]
    by_steps = training.schedule_by == "steps"
    now, end, stop = (
        (counters.env_steps, training.schedule_steps, training.total_timesteps)
        if by_steps
        else (counters.wall_time / 3600, training.schedule_hours, training.duration)
    )
    if not linear or end is None or not (now >= end or (stop is not None and stop > end)):
        return []
    key, unit = ("schedule_steps", "steps") if by_steps else ("schedule_hours", "hours")
    when = "has been 0 since" if now >= end else "will be 0 after"
    return [
        f"training.{linear[0]} {when} {end:,} {unit}, where its linear schedule ends, and nothing is learned"
        f" from there on; extend it with --set training.{key}={max(stop or 0, end)}"
    ]
