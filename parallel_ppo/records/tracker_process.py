"""The process of one tracker: reads metrics.jsonl as it grows and sends every iteration once.

The run's id in the tracker and the environment steps of the last record that was sent are kept in
`logs/tracker-<name>.json`. Where the tracker itself knows the last step, its answer counts.
"""

import fcntl
import json
import os
import re
import secrets
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

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
RUN_ID = re.compile(
    "[0-9a-f]{16}"
)  # trackers make queries and folders of it, and the file may be a stranger's


class Following:
    """Follows a run directory. It is untrusted input: sizes are limited and damaged records skipped."""

    def __init__(self, name: str, root: Path, run: BinaryIO) -> None:
        self.name, self.root, self.run = name, root, run
        self.state = root / "logs" / f"tracker-{name}.json"
        self.run_id, self.sent = self._load()
        self.offset = 0
        self.tracker: Tracker | None = None
        self.has_warned = False

    def follow(self) -> bool:
        """Returns when the run is over: True if everything was sent."""
        is_over = False
        while True:
            try:
                if not self.send_new():
                    if is_over:
                        self.close()
                        return True
                    is_over = self.is_over(wait=POLL)  # one more look: records may have come before the end
            except Exception as error:  # any package may raise anything
                self.warn(error)
                if is_over:
                    return False
                is_over = self.is_over(wait=RETRY)

    def is_over(self, wait: float) -> bool:
        """The coordinator has written or closed the pipe, or died."""
        return bool(select.select([self.run], [], [], wait)[0])

    def send_new(self) -> bool:
        """Returns whether there was anything to send."""
        if self.tracker is None:
            self._save()  # the id, before the tracker knows it
            self.tracker = SERVICES[self.name](self.run_id, self.root, described(self.root))
            self.sent, self.offset = max(self.sent, self.tracker.last), 0
        records = self._read()
        if records:
            self.tracker.send(records)
            self.sent = records[-1]["steps_global"]
            self._save()
        return bool(records)

    def close(self) -> None:
        assert self.tracker is not None
        self.tracker.close(is_finished(self.root, self.sent))

    def warn(self, error: Exception) -> None:
        """One line for the user, the first time; all of them in the log. Opens the tracker anew."""
        self.tracker = None
        text = printable(without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))[:300])
        print(text, file=sys.stderr, flush=True)
        if not self.has_warned:
            self.has_warned = True
            print(f"{text}; the run goes on, and the rest is sent later or with --resume", flush=True)

    def _read(self) -> list[Record]:
        """At most MAX_BATCH whole records beyond what was sent."""
        found: list[Record] = []
        sent = self.sent
        for line in read_lines(self.root / "metrics.jsonl", start=self.offset):
            if len(found) == MAX_BATCH or not line.is_whole:
                break
            self.offset = line.end
            steps = (line.record or {}).get("steps_global")
            if line.record is not None and type(steps) is int and steps > sent:
                found.append(line.record)
                sent = steps
        return found

    def _load(self) -> tuple[str, int]:
        try:
            saved = json.loads(read_regular(self.state, MAX_STATE))
            if RUN_ID.fullmatch(saved["run_id"]) and type(saved["sent"]) is int:
                return saved["run_id"], saved["sent"]
        except (Damaged, ValueError, KeyError, TypeError, RecursionError):
            pass
        return secrets.token_hex(8), 0

    def _save(self) -> None:
        write_atomically(self.state, json.dumps({"run_id": self.run_id, "sent": self.sent}).encode())


def described(root: Path) -> dict[str, Any]:
    """Settings by dotted key, and the version that made the run."""
    settings = yaml.safe_load(read_regular(root / "config.yaml", 1 << 20)) or {}
    run = json.loads(read_regular(root / "run.json", 1 << 24))
    values = {
        f"{section}.{key}": value for section, keys in settings.items() for key, value in (keys or {}).items()
    }
    return values | {key: run.get(key) for key in ("version", "git_commit", "kind")}


def is_finished(root: Path, steps: int) -> bool:
    """By its own summary: a killed run has none, or that of an earlier session."""
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
    name, root = sys.argv[1], Path(sys.argv[2])
    run, warnings = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # packages print to standard output; it belongs to warnings
    sys.stdout = open(warnings, "w", encoding="utf-8")  # noqa: SIM115  (never closed)
    os.nice(19)  # the cores belong to the workers
    threading.Thread(target=_give_up_in_time, args=(run,), daemon=True).start()
    lock = os.open(root / "logs" / f".tracker-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the process of a killed session may still be sending
    done = Following(name, root, run).follow()
    os._exit(0 if done else 1)  # threads of the packages may hang


def _give_up_in_time(run: BinaryIO) -> None:
    """A tracker that cannot be reached must not outlive its run for long."""
    select.select([run], [], [])
    time.sleep(LAST_CHANCE)
    os._exit(1)
