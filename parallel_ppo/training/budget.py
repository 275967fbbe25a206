"""When a run is over: steps or time, whichever comes first. Time is monotonic and cumulative over resumes."""

import time

from parallel_ppo.settings.schema import TrainingSettings
from parallel_ppo.training.state import Counters


class Budget:
    def __init__(self, training: TrainingSettings) -> None:
        self.steps = training.total_timesteps
        self.seconds = training.duration * 3600 if training.duration is not None else None
        self.before = 0.0
        self.started = time.monotonic()

    def start(self, counters: Counters) -> None:
        """The clock runs from the first collect."""
        self.before, self.started = counters.wall_time, time.monotonic()

    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.started

    def spent(self, counters: Counters) -> str | None:
        if self.steps is not None and counters.env_steps >= self.steps:
            return "total_timesteps"
        if self.seconds is not None and self.elapsed() >= self.seconds:
            return "duration"
        return None

    def progress(self, counters: Counters) -> tuple[float, float | None]:
        """Share of the budget that is used, and the seconds left at the mean speed so far."""
        by_steps = counters.env_steps / self.steps if self.steps else 0.0
        by_time = self.elapsed() / self.seconds if self.seconds else 0.0
        share = max(by_steps, by_time)
        if share <= 0:
            return 0.0, None
        if self.seconds and by_time >= by_steps:
            return min(1.0, share), max(0.0, self.seconds - self.elapsed())
        return min(1.0, share), self.elapsed() * (1 - share) / share if share < 1 else 0.0
