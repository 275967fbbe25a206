"""What a worker did, when: for idle shares and traces. Needs no torch."""

from typing import NamedTuple

from parallel_ppo.workers.tasks import Task


class Span(NamedTuple):
    worker: int
    task: Task  # its kind may also be a stage of an optimizer step
    started: float
    ended: float
    interrupted: float = 0.0  # seconds in between that went into more urgent tasks

    @property
    def seconds(self) -> float:
        return self.ended - self.started - self.interrupted
