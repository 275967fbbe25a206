"""Who gets which task: a simulation of workers of different speed, on the pool's own rules."""

from collections import deque
from types import SimpleNamespace

import pytest

from parallel_ppo.workers.process_pool import ProcessPool
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, OPEN, Microbatch, Task
from parallel_ppo.workers.worker_processes import WorkerHandle


class Channel:
    def __init__(self) -> None:
        self.sent: list[Task] = []

    def send(self, task: Task) -> None:
        self.sent.append(task)


def simulate(queues: list[list[Task]], seconds: list[float]) -> list[list[Task]]:
    """What each worker ends up doing, if a task takes worker i `seconds[i]`."""
    pool = object.__new__(ProcessPool)
    pool.waiting, pool.num_workers = {task for queue in queues for task in queue}, len(queues)
    pool.members = [WorkerHandle(index, None, []) for index in range(len(queues))]
    for member, queue in zip(pool.members, queues, strict=True):
        member.child, member.channel, member.queue = SimpleNamespace(), Channel(), deque(queue)
    ends: list[float] = [0.0] * len(queues)
    done: list[list[Task]] = [[] for _ in queues]
    while True:
        for member in pool.members:
            pool._feed(member)
        working = [member for member in pool.members if member.outstanding]
        if not working:
            break
        first = min(working, key=lambda member: ends[member.index] + seconds[member.index])
        done[first.index].append(first.outstanding.popleft())
        pool.waiting.discard(done[first.index][-1])
        ends[first.index] += seconds[first.index]
        for member in pool.members:  # the idle ones have waited until now
            if not member.outstanding:
                ends[member.index] = max(ends[member.index], ends[first.index])
    return done


def microbatches(*numbers: int) -> list[Task]:
    return [Task(GRADIENT, microbatch, 0, Microbatch(0, 3)) for microbatch in numbers]


def test_equal_workers_keep_their_own_microbatches() -> None:
    assert simulate([microbatches(*range(8)), microbatches(*range(8, 16))], [1.0, 1.001]) == [
        microbatches(*range(8)),
        microbatches(*range(8, 16)),
    ]


@pytest.mark.parametrize("slow", [1.2, 1.35, 1.5, 2.0, 3.0])
def test_the_last_microbatches_go_to_whoever_is_idle(slow: float) -> None:
    done = simulate([microbatches(*range(8)), microbatches(*range(8, 16))], [1.0, slow])
    assert sorted(task for tasks in done for task in tasks) == microbatches(*range(16))
    fast_end, slow_end = len(done[0]), slow * len(done[1])
    assert slow_end - fast_end <= slow, "the slow worker kept a microbatch that the idle one could have done"


def test_environments_stay_where_they_are() -> None:
    collects: list[list[Task]] = [[Task(COLLECT, 0)], [Task(COLLECT, index) for index in (1, 2, 3)]]
    assert simulate(collects, [1.0, 5.0]) == collects


def test_a_replacement_gets_a_background_task_once() -> None:
    """Its predecessor died while the others took the last steps: a collect is started before it is ready."""
    pool, member, channel = object.__new__(ProcessPool), WorkerHandle(0, None, [0]), Channel()
    pool.members, pool.owners = [member], {0: 0}
    member.channel = channel
    member.queue.append(Task(OPEN, 0))
    pool.start([Task(COLLECT, 0)])
    member.queue.clear()
    pool._opened(member)
    assert channel.sent == [Task(COLLECT, 0)]


def test_begun_tasks_are_handed_out_at_once_and_only_once() -> None:
    pool = object.__new__(ProcessPool)
    pool.waiting, pool.num_workers, pool.owners = set(), 2, {0: 0, 1: 0, 2: 0, 3: 1}
    pool.settings = SimpleNamespace(sizes=None)
    pool.memory = SimpleNamespace(steps_done=[9] * 4)
    pool.members = [WorkerHandle(index, None, []) for index in range(2)]
    for member in pool.members:
        member.child, member.channel = SimpleNamespace(), Channel()
    tasks = [Task(COLLECT, index, 1) for index in range(4)]
    pool.begin(tasks)
    pool.memory.steps_done[0] = 5
    pool._queue(tasks)
    assert [member.channel.sent for member in pool.members] == [tasks[:2], tasks[3:]]
    assert [list(member.queue) for member in pool.members] == [tasks[2:3], []]
    assert pool.waiting == set(tasks) and pool.memory.steps_done == [5, 0, 0, 0]
