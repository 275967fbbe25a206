"""W&B, MLflow and Trackio follow metrics.jsonl in a process each (`tracker_process.py`).

A run never waits for them while it trains, and they can neither end nor change it: their errors become
warnings. This is the coordinator's side, without any of their packages.
"""

import contextlib
import importlib.util
import os
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
    """One process for each name. Its input, or the end of it, means that the run is over.

    Each line of its output is a warning for the user.
    """

    def __init__(self, names: Sequence[str], root: Path, warn: Callable[[str], None]) -> None:
        self.root, self.warn = root, warn
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in dict.fromkeys(names):
            try:
                self.running[name] = self._start(name)
            except OSError as error:
                warn(f"tracker {name}: cannot be started ({error}); the run goes on without it")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        # As for the fork server, not `-m`: that would search the current directory first.
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        with open(open_to_append(log_file(self.root, name)), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(path=path), name, str(self.root)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
                start_new_session=True,  # Ctrl-C is for the coordinator
                env=os.environ | {OUTLIVES: "1"},
            )  # fmt: skip
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def report(self) -> None:
        """Passes on their warnings, and reports once a tracker that ended."""
        for name, process in list(self.running.items()):
            has_warned = self._pass_on(name, process)
            if process.poll() is not None:
                if not has_warned:
                    self.warn(
                        f"tracker {name}: ended ({process.returncode}); the run goes on, and --resume starts"
                        f" it again; see {log_file(self.root, name)}"
                    )
                del self.running[name]

    def close(self) -> None:
        """The rest is sent now, or in the next minutes. May be called twice."""
        for process in self.running.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.close()
        for name, process in self.running.items():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                log = log_file(self.root, name)
                self.warn(f"tracker {name}: is still sending, for a few minutes more; see {log}")
            self._pass_on(name, process)
        self.running = {}

    def _pass_on(self, name: str, process: subprocess.Popen[bytes]) -> bool:
        assert process.stdout is not None
        text = (process.stdout.read() or b"").decode(errors="replace")
        for line in text.splitlines():
            self.warn(f"tracker {name}: {line}")
        return bool(text)


def log_file(root: Path, name: str) -> Path:
    return root / "logs" / f"tracker-{name}.log"
