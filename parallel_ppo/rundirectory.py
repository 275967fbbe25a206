"""A run directory: made, locked, described. See docs/architecture.md for what it holds."""

import datetime
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from parallel_ppo.exits import InputError
from parallel_ppo.files import write_atomically
from parallel_ppo.version import VERSION

MARKS = ("run.json", "config.yaml", "metrics.jsonl", "episodes.jsonl", "summary.json")


class RunDirectory:
    def __init__(self, root: Path, checkpoints: Path) -> None:
        self.root, self.checkpoints = root, checkpoints
        self.lock: int | None = None

    @classmethod
    def new(
        cls, root: Path | None, kind: str, checkpoints: Path | None, *, begun: bool = False
    ) -> "RunDirectory":
        """An empty place for a run. None given: the next free runs/<kind>-N. `begun`: a start that failed early may be repeated."""
        if root is None:
            number = 1
            while Path(f"runs/{kind}-{number}").exists():
                number += 1
            root = Path(f"runs/{kind}-{number}")
        directory = cls(root, checkpoints or root / "checkpoints")
        held = [name for name in MARKS if (root / name).exists()]
        if held and not begun:
            raise InputError(
                f"{root}: holds another run ({held[0]}); continue it with --resume {root} or give another --output-dir"
            )
        if any(directory.checkpoints.glob("step_*")):
            raise InputError(
                f"{directory.checkpoints}: holds checkpoints of another run; give another directory"
            )
        for path in (root, directory.checkpoints):
            _check_writable(path)
        return directory

    @classmethod
    def existing(cls, root: Path) -> "RunDirectory":
        if not (root / "config.yaml").is_file():
            raise InputError(
                f"{root}: holds no run to resume (no config.yaml); expected the directory of an earlier run"
            )
        try:
            kept = json.loads((root / "run.json").read_text()).get("checkpoints")
        except (OSError, ValueError, AttributeError):
            kept = None
        return cls(root, Path(kept) if isinstance(kept, str) else root / "checkpoints")

    def open(self) -> None:
        """Makes and locks it. The kernel drops the lock with the process: a crash leaves none behind."""
        for path in (self.root, self.checkpoints, self.root / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.lock)
            self.lock = None
            raise InputError(
                f"{self.root}: is in use by another process; wait for it or give another --output-dir"
            ) from None

    def write_config(self, text: str) -> None:
        write_atomically(self.root / "config.yaml", text.encode())

    def describe(
        self,
        *,
        kind: str,
        seed: int,
        session: dict[str, Any],
        machine: dict[str, Any],
        placement: dict[str, Any],
    ) -> None:
        """Writes run.json; a resumed run gets one more session."""
        path = self.root / "run.json"
        sessions = json.loads(path.read_text())["sessions"] if path.exists() else []
        content = {
            "version": VERSION,
            "git_commit": git_commit(),
            "kind": kind,
            "seed": seed,
            "command": sys.argv,
            "machine": machine,
            "placement": placement,
            "checkpoints": None if self.checkpoints == self.root / "checkpoints" else str(self.checkpoints),
            "sessions": [
                *sessions,
                {
                    "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                    "command": sys.argv,
                    **session,
                },
            ],
        }
        write_atomically(path, json.dumps(content, indent=1).encode())

    def summarize(self, summary: dict[str, Any]) -> None:
        write_atomically(self.root / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())

    def close(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


class ForeignDirectory(RunDirectory):
    """On the nodes that do not lead: the run is written elsewhere, only a log of this node is kept."""

    def __init__(self, root: Path | None) -> None:
        super().__init__(root or Path("runs"), (root or Path("runs")) / "checkpoints")

    def open(self) -> None:
        pass

    def write_config(self, text: str) -> None:
        pass

    def describe(self, **content: Any) -> None:
        pass

    def summarize(self, summary: dict[str, Any]) -> None:
        pass


def _check_writable(path: Path) -> None:
    existing = path
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{path}: cannot be made, because {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise InputError(
            f"{path}: cannot be written (no permission for {existing}); give another --output-dir"
        )


def git_commit() -> str | None:
    """The commit of this source tree, with `-dirty` when files differ from it."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("-dirty" if changed else "")
