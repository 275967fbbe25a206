"""The trainer in a process of its own, as `training.train` starts it: the command, with the caller in
place of a terminal.

Messages are JSON lists, `[kind, ...]`. Nothing of the caller reaches this process but flags, its module
path and its answers.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parallel_ppo.exits import CallbackError, RunError, details_of
from parallel_ppo.records.display import Clock, Display, Phases
from parallel_ppo.training.callbacks import Callback, Progress

CALLER_LEFT = "the caller left"


class Caller:
    """An `Audience`: what a terminal would show goes to the caller, which is asked after each iteration."""

    def __init__(self, channel: Connection) -> None:
        self.channel, self.lock = channel, threading.Lock()
        self.display: Display = self
        self.callbacks: Sequence[Any] = [Callback("the caller", self.ask)]
        self.clock: Callable[[], Clock] = lambda: Clock(0.0, 0.0, None)

    def tell(self, *message: Any) -> None:
        with self.lock, contextlib.suppress(OSError):
            self.channel.send_bytes(json.dumps(message).encode())

    def planned(self, directory: Path) -> None:
        self.tell("directory", str(directory))

    def ask(self, progress: Progress) -> str | None:
        self.tell("ask", progress.metrics)
        try:
            while "wish" in (answer := json.loads(self.channel.recv_bytes())):
                self.tell("policy", str(progress.wishes.write_policy()))
        except (OSError, EOFError):
            return CALLER_LEFT
        progress.wishes.numbers |= answer["numbers"]
        progress.wishes.save |= answer["save"]
        if "failure" in answer:
            raise CallbackError(answer["failure"])
        return answer.get("stop")

    # --- a Display ------------------------------------------------------------------------------------------

    def start(self, header: list[str], clock: Callable[[], Clock]) -> None:
        self.clock = clock
        self.tell("start", header)

    def watch(self, phases: Phases) -> None:
        pass  # a message for each look would be needed

    def phase(self, name: str) -> None:
        self.tell("phase", name)

    def show(self, record: dict[str, Any]) -> None:
        self.tell("show", record, *self.clock())

    def note(self, line: str) -> None:
        self.tell("note", line)

    def warn(self, line: str) -> None:
        self.tell("warn", line)

    def close(self) -> None:
        self.tell("close")


class Stream:
    """Standard output or error of this process, for the caller to print."""

    def __init__(self, caller: Caller, name: str) -> None:
        self.caller, self.name = caller, name

    def write(self, text: str) -> int:
        self.caller.tell("text", self.name, text)
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def main() -> None:
    descriptor, kind, flags = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    sys.argv = ["parallel_ppo.train", *flags]
    caller = Caller(Connection(descriptor))
    sys.stdout, sys.stderr = Stream(caller, "stdout"), Stream(caller, "stderr")
    from parallel_ppo.commands.train import leave, train_parallel, train_sequential

    trainer = train_sequential if kind == "sequential" else train_parallel
    try:
        code = trainer(flags, caller)
        caller.tell("end", int(code))
    except RunError as error:
        code = int(error.code)
        caller.tell("error", type(error).__name__, str(error), details_of(error))
    leave(code)
