"""The process behind one tracker: reads metrics.jsonl as it grows and hands every iteration on, once.

The run's id there and what is known to have arrived are kept in `logs/tracker-<name>.json`. A record is
known by its environment steps, which also are its step in the tracker, as in TensorBoard. What a killed
process had begun is found out by asking the tracker, or done again (see `tracker_services.py`): the file
is the truth, so nothing can be lost.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from parallel_ppo.printable import printable
from parallel_ppo.records.tracker_services import SERVICES, Tracker
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically
from parallel_ppo.storage.json_lines import Record, read_lines

POLL = 2.0  # seconds
RETRY = 60.0
LAST_CHANCE = 300.0  # seconds after the end of the run; then the next start sends the rest
MAX_BATCH = 500
MAX_STATE = 1 << 16


class Tail:
    """The whole records of a file that grows, as they come."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def read(self, after: int) -> list[Record]:
        """At most MAX_BATCH that lie beyond `after` steps."""
        found: list[Record] = []
        for line in read_lines(self.path, start=self.offset):
            if len(found) == MAX_BATCH or not line.is_whole:
                break
            self.offset = line.end
            steps = (line.record or {}).get("steps_global")
            if line.record is not None and type(steps) is int and steps > after:
                found.append(line.record)
                after = steps
        return found


class State:
    """What must survive this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            saved = json.loads(read_regular(path, MAX_STATE))
            self.run_id, self.sent = str(saved["run_id"]), int(saved["sent"])
            self.segment = None if saved["segment"] is None else str(saved["segment"])
        except (Damaged, ValueError, KeyError, TypeError, RecursionError):
            self.run_id, self.sent, self.segment = secrets.token_hex(8), 0, None

    def write(self) -> None:
        content = {"run_id": self.run_id, "sent": self.sent, "segment": self.segment}
        write_atomically(self.path, json.dumps(content).encode())


class Following:
    def __init__(self, name: str, root: Path, channel: socket.socket) -> None:
        self.name, self.root, self.channel = name, root, channel
        self.state = State(root / "logs" / f"tracker-{name}.json")
        self.tail = Tail(root / "metrics.jsonl")
        self.tracker: Tracker | None = None
        self.sent = 0  # steps of the last record handed on
        self.has_warned = False

    def run(self) -> bool:
        """Until the run is over and everything was sent; False when the rest could not be."""
        while True:
            over = is_over(self.channel)  # first: what is written before the end is then read after it
            try:
                more = self.hand_on()
                if over and not more:
                    self.close()
                    return True
            except Exception as error:  # any package may raise anything
                self.fail(error)
                if over:
                    return False
                self.wait(RETRY)
                continue
            if not more:
                self.wait(POLL)

    def hand_on(self) -> bool:
        """Whether there was something to send."""
        if self.tracker is None:
            self.state.write()  # the id, before anyone else knows it
            self.tracker = SERVICES[self.name](self.state, self.root, described(self.root))
            self.sent, self.tail.offset = max(self.state.sent, self.tracker.last), 0
        records = self.tail.read(self.sent)
        if records:
            self.tracker.send(records)
            self.sent = records[-1]["steps_global"]
        return bool(records)

    def close(self) -> None:
        assert self.tracker is not None
        self.tracker.close(is_finished(self.root, self.sent))
        self.state.sent, self.state.segment = self.sent, None
        self.state.write()

    def fail(self, error: Exception) -> None:
        """One line for the user, the first time; all of them in the log."""
        self.tracker = None
        text = without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
        print(text, flush=True)
        if not self.has_warned:
            self.has_warned = True
            line = f"{text}; the run goes on, and what is missing is sent later or with --resume\n"
            with contextlib.suppress(OSError):
                self.channel.send(printable(line).encode())

    def wait(self, seconds: float) -> None:
        select.select([self.channel], [], [], seconds)


def is_over(channel: socket.socket) -> bool:
    """Has the coordinator closed the socket, or died?"""
    with contextlib.suppress(BlockingIOError):
        try:
            return channel.recv(1) == b""
        except ConnectionError:
            return True
    return False


def described(root: Path) -> dict[str, Any]:
    """Settings by dotted key, and what made the run."""
    settings = yaml.safe_load(read_regular(root / "config.yaml", 1 << 20)) or {}
    run = json.loads(read_regular(root / "run.json", 1 << 24))
    values = {
        f"{section}.{key}": value for section, keys in settings.items() for key, value in (keys or {}).items()
    }
    return values | {key: run.get(key) for key in ("version", "git_commit", "kind")}


def is_finished(root: Path, steps: int) -> bool:
    """By its own word: a killed run has no summary, or that of an earlier session."""
    try:
        summary = json.loads(read_regular(root / "summary.json", 1 << 20))
        return bool(summary["exit_code"] == 0 and summary["env_steps"] == steps)
    except (Damaged, ValueError, KeyError, TypeError):
        return False


def without_secrets(text: str) -> str:
    """Addresses may hold a user's name and password, and messages a key."""
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    return re.sub(r"\b(hf_\w{8,}|wandb_v1_\w+|[0-9a-f]{40})\b", "***", text)


def main() -> None:
    name, root, descriptor = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    channel = socket.socket(fileno=descriptor)
    channel.setblocking(False)
    with contextlib.suppress(OSError):
        os.nice(19)  # the cores belong to the workers
    threading.Thread(target=_give_up_in_time, args=(channel,), daemon=True).start()
    lock = os.open(root / "logs" / f".tracker-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the one of a killed session may still be sending
    done = Following(name, root, channel).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if done else 1)  # threads of the packages may hang


def _give_up_in_time(channel: socket.socket) -> None:
    """A tracker that cannot be reached must not outlive its run for long."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    poll.poll()
    time.sleep(LAST_CHANCE)
    os._exit(1)
