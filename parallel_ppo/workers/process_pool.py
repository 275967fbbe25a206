"""The pool of processes: workers get tasks, are watched and replaced. How a process starts and ends is in
`worker_processes.py`.

A task is pinned to the worker that owns the slice, or free (`tasks.py`). A free task is queued at its home, and
an idle worker may take it. A worker that dies, hangs, stops or raises is killed, confirmed dead and replaced.
Its slices are restored to the start of the iteration, and its tasks are done again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from parallel_ppo.exits import NumbersError, RestartsExhausted
from parallel_ppo.machine.signals import NoSignals
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers.fork_server import ForkServer, is_stopped
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.optimizer_steps import make_steps
from parallel_ppo.workers.pool import NOT_RESTORED, opening_task
from parallel_ppo.workers.process import Done, ExchangeOpened, Failed
from parallel_ppo.workers.tasks import COLLECT, GRADIENT, OPEN, TAKE_STEPS, Span, Task, home, is_pinned
from parallel_ppo.workers.worker_processes import WorkerHandle, WorkerProcesses, is_dead

DEPTH = 2  # tasks in a worker's hands: one to do and one waiting, so that it never idles between them
POLL = 0.5
FIRST_DEADLINE = 600.0
LEAST_DEADLINE = 30.0
DEADLINE_FACTOR = 20.0
GAP = 10.0  # the coordinator itself was stopped or suspended: deadlines restart


class ProcessPool:
    def __init__(
        self,
        settings: Settings,
        memory: Memory,
        fork_server: ForkServer,
        cpus: list[int | None],
        slices: range,
        first_iteration: int,
        on_fault: Callable[[str], None],
        signals: NoSignals | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        """`on_fault` gets a line for every worker that is lost; `on_event` the facts, and again when it
        is replaced.
        """
        self.settings, self.memory, self.on_fault, self.on_event = settings, memory, on_fault, on_event
        self.signals = signals or NoSignals()
        self.processes = WorkerProcesses(fork_server, memory.descriptors, self.signals)
        self.num_workers, self.restarts, self.exact = len(cpus), 0, True
        self.members = [
            WorkerHandle(index, cpu, list(_evenly(slices, self.num_workers, index)))
            for index, cpu in enumerate(cpus)
        ]
        self.owners = {index: member.index for member in self.members for index in member.slices}
        self.slice_iteration = dict.fromkeys(slices, first_iteration)
        self.longest: dict[str, float] = {}  # seconds of a task, by its kind
        self.steps = make_steps(settings, memory, self.num_workers, slices)
        self.waiting: set[Task] = set()
        self.spans: list[Span] = []
        self.background_spans: list[Span] = []
        self.awaits_background = False
        for member in self.members:
            self._start(member)
        self.run(())

    @property
    def pids(self) -> list[int]:
        children = [member.child.pid for member in self.members if member.child]
        return [self.processes.fork_server.process.pid, *children]

    # --- asking ---------------------------------------------------------------------------------------------

    def begin(self, tasks: Iterable[Task]) -> None:
        """Each worker gets its first tasks now, the others in `run`."""
        self._queue(tasks)
        for member in self.members:
            self._feed(member)

    def run(self, tasks: Iterable[Task]) -> list[Span]:
        """Returns when every task is done, even if workers had to be replaced."""
        self._queue(tasks)
        self.spans = []
        self._work_until(lambda: not self.waiting and not any(member.outstanding for member in self.members))
        return self.spans

    def _queue(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if task in self.waiting:
                continue  # begun already
            if task.kind == COLLECT:
                self.memory.steps_done[task.number] = 0
            self.waiting.add(task)
            first = home(task, self.settings.sizes, self.owners, self.num_workers)
            self.members[first].queue.append(task)

    def take_steps(self, task: Task, exchange: Callable[[], None]) -> list[Span]:
        steps = self.steps
        assert steps is not None
        for member in self.members:
            member.queue.append(task)
        while not steps.is_over():
            self._work_until(lambda: steps.is_over() or steps.awaits_exchange())
            if steps.awaits_exchange():
                exchange()
                steps.finish_exchange()
        self._work_until(lambda: not any(member.steps for member in self.members))
        self.longest[GRADIENT] = max(self.longest.get(GRADIENT, 0.0), steps.longest_microbatch())
        return steps.spans(task)

    def start(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            member = self.members[self.owners[task.number]]
            member.background.append(task)
            member.send_background(task)

    def finish(self, tasks: Sequence[Task]) -> list[Span]:
        wanted = set(tasks)
        self.awaits_background = True
        self._work_until(
            lambda: not self.waiting and not any(wanted & set(member.background) for member in self.members)
        )
        self.awaits_background = False
        spans, self.background_spans = self.background_spans, []
        return spans

    def _work_until(self, is_done: Callable[[], bool]) -> None:
        last_poll = time.monotonic()
        while not is_done():
            for member in self.members:
                self._feed(member)
            for key, _ in self.processes.selector.select(POLL):
                self._event(key.fileobj, key.data)
            self.signals.check()
            if time.monotonic() - last_poll > POLL:
                last_poll = self._watch(last_poll)

    def _feed(self, member: WorkerHandle) -> None:
        while member.child is not None and len(member.outstanding) < self._depth(member):
            if not member.queue and not self._steal(member):
                return
            task = member.queue.popleft()
            try:
                member.send(task)
            except OSError:
                return  # it is dying: its sentinel reports that, and its tasks are done again

    def _depth(self, member: WorkerHandle) -> int:
        """The last free tasks are not handed out ahead: the first idle worker takes them."""
        is_next_pinned = bool(member.queue) and is_pinned(member.queue[0])
        return DEPTH if is_next_pinned or len(self.waiting) > DEPTH * self.num_workers else 1

    def _steal(self, member: WorkerHandle) -> bool:
        """Takes a free task from the worker that has most of them waiting."""
        victim = max(self.members, key=lambda other: len(other.queue))
        if not victim.queue or is_pinned(victim.queue[-1]) or (member.outstanding and len(victim.queue) < 2):
            return False
        member.queue.append(victim.queue.pop())
        return True

    # --- replies --------------------------------------------------------------------------------------------

    def _event(self, source: Any, member: WorkerHandle | None) -> None:
        """Ignores late events from a worker that was already replaced."""
        if member is None or member.child is None or member.channel is None:
            return
        is_lost = False
        try:
            if source is member.channel:
                self._message(member, member.channel.recv())
            elif is_dead(member.child):
                is_lost = True
                while member.channel.poll():  # messages from before its death
                    self._message(member, member.channel.recv())
        except (EOFError, OSError):
            is_lost = True
        if is_lost:
            self._replace(member, "raised" if member.traceback else "died")

    def _message(self, member: WorkerHandle, message: Done | Failed | ExchangeOpened) -> None:
        if isinstance(message, ExchangeOpened):
            return  # it only wakes this process, which then looks at the shared memory
        if isinstance(message, Failed):
            if message.numbers:
                raise NumbersError(message.message)
            member.traceback, member.details = message.message, message.details
            raise EOFError  # it has left its loop: handle it as dead
        task = message.task
        spans = self.spans
        if member.background and member.background[0] == task:
            member.background.popleft()
            spans = self.background_spans
        else:
            assert member.outstanding and member.outstanding[0] == task, "a reply to a task that was not sent"
            member.outstanding.popleft()
        member.asked = time.monotonic()
        if task.kind == TAKE_STEPS:
            return
        self.waiting.discard(task)
        if self.exact and not message.exact:
            self.on_fault(NOT_RESTORED)
        self.exact &= message.exact
        if task.kind == COLLECT:
            self.slice_iteration[task.number] = task.iteration + 1
        duration = message.ended - message.started
        self.longest[task.kind] = max(self.longest.get(task.kind, 0.0), duration)
        if task.kind == OPEN:
            self._opened(member)
        else:
            spans.append(Span(member.index, task, message.started, message.ended, message.interrupted))

    def _opened(self, member: WorkerHandle) -> None:
        if member.is_opening:
            return
        for task in member.background:
            member.send_background(task)
        if member.lost_at is not None:
            seconds, member.lost_at = time.monotonic() - member.lost_at, None
            self.on_event({"event": "replaced", "worker": member.index, "seconds": seconds})

    # --- watching -------------------------------------------------------------------------------------------

    def _watch(self, last_poll: float) -> float:
        now = time.monotonic()
        for member in self.members:
            if member.child is None:
                continue
            progress = self._progress(member)
            if now - last_poll > GAP or progress != member.progress:  # it is slow, but it makes progress
                member.asked, member.progress = now, progress
            member.stopped_polls = member.stopped_polls + 1 if is_stopped(member.child.pid) else 0
            if member.stopped_polls >= 2:
                self._replace(member, "was stopped by a signal")
            elif not member.outstanding and not (self.awaits_background and member.background):
                continue
            elif now - member.asked > self._deadline((member.outstanding or member.background)[0]):
                self._replace(member, f"did not respond for {now - member.asked:.0f} s")
        return now

    def _progress(self, member: WorkerHandle) -> object:
        collected = int(self.memory.steps_done[member.slices].sum())
        if self.steps is not None and member.steps:
            return collected, self.steps.progress(member.index)
        return collected

    def _deadline(self, task: Task) -> float:
        chosen = self.settings.parallel.hang_timeout
        if chosen != "auto":
            return chosen
        # Opening has no usual time: a restored environment plays its episode again.
        kind = GRADIENT if task.kind == TAKE_STEPS else task.kind
        longest = None if kind == OPEN else self.longest.get(kind)
        return FIRST_DEADLINE if longest is None else max(LEAST_DEADLINE, DEADLINE_FACTOR * longest)

    # --- starting, replacing, stopping ----------------------------------------------------------------------

    def _start(self, member: WorkerHandle) -> None:
        self.processes.start(member)
        for slice_index in reversed(member.slices):
            task = opening_task(self.memory, slice_index, self.slice_iteration[slice_index])
            self.waiting.add(task)
            member.queue.appendleft(task)

    def _replace(self, member: WorkerHandle, what: str) -> None:
        """The old process is confirmed dead before the new one gets tasks, so it cannot write late."""
        assert member.child is not None
        pid, noticed = member.child.pid, time.monotonic()
        self.processes.kill(member)
        if self.steps is not None:
            self.steps.free(member.index)
        cause = self.processes.cause_of_end(pid, what)
        again = [task for task in (*member.outstanding, *member.queue) if task.kind != OPEN]
        self.waiting -= {task for task in (*member.outstanding, *member.queue) if task.kind == OPEN}
        member.outstanding.clear()
        member.queue = deque(again)
        member.restarts += 1
        self.restarts += 1
        iteration = max(self.slice_iteration.values(), default=0)
        last_line = member.traceback.strip().splitlines()[-1] if member.traceback else ""
        is_same = bool(member.traceback) and member.traceback == member.earlier_traceback
        if is_same or member.restarts > self.settings.parallel.max_restarts:
            how_often = (
                "again with the same error"
                if is_same
                else f"{member.restarts} times without a completed iteration"
            )
            exhausted = RestartsExhausted(
                f"worker {member.index} {cause} {how_often} (iteration {iteration}, seed"
                f" {self.settings.training.seed}){': ' + last_line if last_line else ''}"
                + (f"\n{member.traceback}" if "\n" in member.traceback.strip() else "")
            )
            exhausted.details = member.details
            raise exhausted
        self.on_fault(
            f"worker {member.index} {cause}{': ' + last_line if last_line else ''}; replaced, its work is"
            " redone"
        )
        self.on_event(
            {
                "event": "lost",
                "worker": member.index,
                "iteration": iteration,
                "cause": cause,
                "pid": pid,
                "monotonic": noticed,
            }
        )
        member.earlier_traceback, member.traceback, member.lost_at = member.traceback, "", noticed
        self._start(member)

    def iteration_done(self) -> None:
        for member in self.members:
            member.restarts, member.earlier_traceback = 0, ""

    def close(self) -> None:
        """May be called twice, and at any moment."""
        busy = [member for member in self.members if member.outstanding or member.background]
        self.processes.close(self.members, busy)


def _evenly(slices: range, parts: int, index: int) -> range:
    """Contiguous and as even as possible."""
    return slices[index * len(slices) // parts : (index + 1) * len(slices) // parts]
