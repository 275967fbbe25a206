"""A run directory: creating, locking and describing it. docs/architecture.md lists its files."""

import contextlib
import datetime
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from parallel_ppo.arguments import next_free
from parallel_ppo.exits import InputError, StorageError
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically
from parallel_ppo.storage.json_lines import parsed
from parallel_ppo.version import VERSION

MARKS = ("run.json", "config.yaml", "metrics.jsonl", "episodes.jsonl", "summary.json")
SHARED = "provenance.json"  # in a folder that `push` wrote
OWNER = ".belongs-to"  # in a separate directory of checkpoints: the path of the run
MAX_RUN_JSON = 1 << 24


class RunDirectory:
    def __init__(self, root: Path, checkpoints: Path | None, *, is_new: bool, pattern: str = "") -> None:
        """`pattern` is that of numbered directories; `claim` may then choose another number than `root`."""
        self.root, self.is_new = root, is_new
        self.checkpoints_elsewhere = None if checkpoints == root / "checkpoints" else checkpoints
        self.pattern, self.claimed = pattern, False
        self.locks: list[int] = []

    @classmethod
    def new(cls, root: Path | None, kind: str, checkpoints: Path | None) -> "RunDirectory":
        """A directory without a run, by default the next free runs/<kind>-N."""
        pattern = "" if root else f"runs/{kind}-{{}}"
        directory = cls(root or next_free(pattern), checkpoints, is_new=True, pattern=pattern)
        directory._check_unused()
        for path in (directory.root, directory.checkpoints):
            _check_writable(path)
        return directory

    @property
    def checkpoints(self) -> Path:
        return self.checkpoints_elsewhere or self.root / "checkpoints"

    @classmethod
    def existing(cls, root: Path) -> "RunDirectory":
        if not (root / "config.yaml").is_file():
            raise InputError(f"{root}: contains no run (no config.yaml); expected the directory of a run")
        if (root / SHARED).exists():
            raise InputError(
                f"{root}: is a shared policy and no run; start a run from it with --init-from {root}"
            )
        elsewhere = _read_json(root / "run.json").get("checkpoints")
        if not isinstance(elsewhere, str):
            return cls(root, None, is_new=False)
        owner = Path(elsewhere) / OWNER
        try:
            belongs = read_regular(owner, 65536).decode(errors="replace") == str(root.resolve())
        except Damaged:
            belongs = False
        if not belongs:
            raise InputError(
                f"{root / 'run.json'}: names checkpoints in {elsewhere[:200]!r}, whose {OWNER} does not name this run"
            )
        return cls(root, Path(elsewhere), is_new=False)

    def _check_unused(self) -> None:
        held = [name for name in MARKS if (self.root / name).exists()]
        if held:
            raise InputError(
                f"{self.root}: already contains a run ({held[0]}); resume it with --resume {self.root}, or use"
                " another --output-dir"
            )
        if any(self.checkpoints.glob("step_*")):
            raise InputError(f"{self.checkpoints}: contains checkpoints of another run; use another")

    @property
    def has_begun(self) -> bool:
        """True if an iteration was recorded; the first checkpoint is written before that."""
        try:
            return (self.root / "metrics.jsonl").stat().st_size > 0
        except OSError:
            return False

    def claim(self) -> None:
        """Creates the next free numbered directory, atomically, so that simultaneous runs get different ones."""
        while self.pattern and not self.claimed:
            try:
                self.root.parent.mkdir(parents=True, exist_ok=True)
                self.root.mkdir()
                self.claimed = True
            except FileExistsError:
                self.root = next_free(self.pattern)
            except OSError as error:
                raise StorageError(f"{self.root}: cannot be created ({error.strerror})") from None

    def open(self) -> None:
        """Creates and locks the directory. The kernel releases the locks when the process ends."""
        self.claim()
        try:
            for path in (self.root, self.checkpoints, self.root / "logs"):
                path.mkdir(parents=True, exist_ok=True)
            self.check_folders()
            for path in {self.root, self.checkpoints_elsewhere or self.root}:
                self._lock(path / ".lock")
        except BlockingIOError as error:
            self.close()
            raise InputError(
                f"{error.filename}: is in use by another process; wait, or use another directory"
            ) from None
        except OSError as error:
            self.close()
            raise StorageError(f"{self.root}: cannot be created or locked ({error})") from None
        if self.is_new:
            self._check_unused()  # again, because another run may have started and ended meanwhile
            if self.checkpoints_elsewhere:
                self.write(self.checkpoints / OWNER, str(self.root.resolve()).encode())

    def check_folders(self) -> None:
        """Refuses links, because old files in these folders are deleted."""
        for path in (self.root / "logs", self.root / "checkpoints"):
            if path.is_symlink():
                raise InputError(f"{path}: is a link, and files in it would be deleted; use a real folder")

    def _lock(self, path: Path) -> None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        self.locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            error.filename = str(path.parent)
            raise

    def write(self, path: Path, data: bytes) -> None:
        """Writes a required file."""
        try:
            write_atomically(path, data)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({error.strerror})") from None

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
        content = {
            "version": VERSION,
            "git_commit": git_commit(),
            "kind": kind,
            "seed": seed,
            "command": sys.argv,
            "machine": machine,
            "placement": placement,
            "checkpoints": (str(self.checkpoints.resolve()) if self.checkpoints_elsewhere else None),
            "sessions": [
                *self._sessions(),
                {
                    "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                    "command": sys.argv,
                    **session,
                },
            ],
        }
        self.write(self.root / "run.json", json.dumps(content, indent=1).encode())

    def _sessions(self) -> list[Any]:
        sessions = _read_json(self.root / "run.json").get("sessions")
        return sessions if isinstance(sessions, list) else []

    def summarize(self, summary: dict[str, Any]) -> None:
        write_atomically(self.root / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())

    def finished_steps(self) -> int | None:
        """The steps of a run that ended with exit code 0, else None."""
        summary = _read_json(self.root / "summary.json")
        return summary.get("env_steps") if summary.get("exit_code") == 0 else None

    def schedule_changes(self) -> list[dict[str, Any]]:
        """Changes of schedules on resume (by key: before and now), which change what is learned."""
        changes = []
        for session in self._sessions():
            changed = session.get("schedule_changes") if isinstance(session, dict) else None
            if changed and isinstance(changed, dict):
                changes.append({"env_steps": session.get("env_steps"), **changed})
        return changes

    def close(self) -> None:
        """Removes a claimed directory that is empty. May be called twice."""
        while self.locks:
            os.close(self.locks.pop())
        if self.claimed:
            with contextlib.suppress(OSError):
                self.root.rmdir()


def run_of(folder: Path) -> Path:
    """The run directory of a folder of checkpoints, or the folder itself."""
    try:  # a run with --checkpoint-dir, if both say that they belong together
        owner = Path(read_regular(folder / OWNER, 65536).decode())
        if RunDirectory.existing(owner).checkpoints.resolve() == folder.resolve():
            return owner
    except (Damaged, InputError, UnicodeDecodeError):
        pass
    return folder.parent if folder.name == "checkpoints" else folder


class ForeignDirectory(RunDirectory):
    """For nodes that do not lead, whose run is written by the leading node."""

    def __init__(self, root: Path | None) -> None:
        super().__init__(root or Path("runs"), None, is_new=False)

    def open(self) -> None:
        pass

    def write(self, path: Path, data: bytes) -> None:
        pass

    def describe(self, **content: Any) -> None:
        pass

    def summarize(self, summary: dict[str, Any]) -> None:
        pass


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a file, or {} if it cannot be read, because a run can be resumed without it."""
    try:
        return parsed(read_regular(path, MAX_RUN_JSON)) or {}
    except Damaged:
        return {}


def _check_writable(path: Path) -> None:
    existing = path
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{path}: cannot be created, because {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{path}: cannot be written (no permission for {existing})")


def git_commit() -> str | None:
    """The commit of this source tree, with `-dirty` if files differ from it."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    if not (root / ".git").exists():
        return None
    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
