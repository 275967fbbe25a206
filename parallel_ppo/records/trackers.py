"""Trackers that people watch (W&B, MLflow, Trackio) follow metrics.jsonl in a process each.

A run never waits for them, and nothing they do can end or change it: what they report is a warning. The
process is `tracker_process.py`; this is the coordinator's side, without any of their packages.
"""

import contextlib
import importlib.util
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from parallel_ppo.exits import InputError
from parallel_ppo.machine.descendants import OUTLIVES
from parallel_ppo.storage.files import open_to_append

PATIENCE = 20.0  # seconds that a finished run waits for the last metrics to be sent
PROGRAM = "import sys; sys.path[:] = {path!r}; from parallel_ppo.records.tracker_process import main; main()"


def check_installed(names: Sequence[str]) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise InputError(
                f'logging.trackers: {name} is not installed here; pip install "parallel_ppo[{name}]", or'
                " leave it out"
            )


class Trackers:
    """The processes, one for each name. The socket's end tells them that the run is over, however it
    ended.
    """

    def __init__(self, names: Sequence[str], root: Path, warn: Callable[[str], None]) -> None:
        self.root, self.warn = root, warn
        self.running: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}
        for name in dict.fromkeys(names):
            try:
                self.running[name] = self._start(name)
            except OSError as error:
                warn(f"tracker {name}: cannot be started ({error}); the run goes on without it")

    def _start(self, name: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # As for the fork server, not `-m`: that would search the current directory first.
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        with theirs, open(open_to_append(log_file(self.root, name)), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(path=path), name, str(self.root), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the coordinator
                env=os.environ | {OUTLIVES: "1"},
            )
        return process, ours

    def report(self) -> None:
        """Passes on what the processes say. A lost one is said once."""
        for name, (process, channel) in list(self.running.items()):
            text = _received(channel)
            for line in text.splitlines():
                self.warn(f"tracker {name}: {line}")
            if process.poll() is not None:
                if not text:
                    self.warn(
                        f"tracker {name}: ended ({process.returncode}); the run goes on, and --resume starts"
                        f" it again ({log_file(self.root, name)} says more)"
                    )
                channel.close()
                del self.running[name]

    def close(self) -> None:
        """The rest is sent now, or goes on being sent when the run has ended. May be called twice."""
        for _, channel in self.running.values():
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_WR)
        for name, (process, channel) in self.running.items():
            with channel:
                try:
                    process.wait(PATIENCE)
                    text = _received(channel)
                except subprocess.TimeoutExpired:
                    text = (
                        f"is still sending, for a few minutes more ({log_file(self.root, name)} says how it"
                        " ends)"
                    )
            for line in text.splitlines():
                self.warn(f"tracker {name}: {line}")
        self.running = {}


def log_file(root: Path, name: str) -> Path:
    return root / "logs" / f"tracker-{name}.log"


def _received(channel: socket.socket) -> str:
    parts = []
    with contextlib.suppress(OSError):
        while select.select([channel], [], [], 0)[0]:
            parts.append(channel.recv(1 << 16))
            if not parts[-1]:
                break
    return b"".join(parts).decode(errors="replace")
