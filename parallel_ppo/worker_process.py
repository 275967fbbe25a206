"""A worker as a process: one torch thread, one core, one socket to the coordinator."""

import contextlib
import os
import time
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from parallel_ppo.config import Settings
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.exits import NumbersError, RunError
from parallel_ppo.policies.policy import Policy, num_flat
from parallel_ppo.shared import Memory
from parallel_ppo.worker import Task, Worker


class Done(NamedTuple):
    """A task is finished; times are on the system's monotonic clock."""

    task: Task
    started: float
    ended: float
    exact: bool


class Failed(NamedTuple):
    """A task raised. `numbers` marks a NaN or infinity, which no restart would cure."""

    task: Task | None
    numbers: bool
    message: str


def set_up(cpu: int | None) -> None:
    """Threads and affinity. Signals and the tie to the parent are inherited or set by the nursery."""
    torch.set_num_threads(1)
    if cpu is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})


def serve(
    descriptor: int,
    memory_descriptors: tuple[int, int],
    settings: Settings,
    spec: EnvSpec,
    index: int,
    cpu: int | None,
) -> None:
    """Does what the coordinator asks until it hangs up."""
    channel = Connection(descriptor)
    task: Task | None = None
    try:
        set_up(cpu)
        memory = Memory(settings, spec, num_flat(Policy(settings, spec)), memory_descriptors)
        worker = Worker(settings, spec, memory)
        while True:
            try:
                task = channel.recv()
            except (EOFError, ConnectionResetError):
                return
            started = time.monotonic()
            exact = worker.run(task)
            channel.send(Done(task, started, time.monotonic(), exact))
    except NumbersError as error:
        _tell(channel, Failed(task, True, f"worker {index}: {error}"))
    except RunError as error:
        _tell(channel, Failed(task, False, str(error)))
    except BaseException:
        _tell(channel, Failed(task, False, traceback.format_exc()))


def _tell(channel: Connection, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        channel.send(failure)
