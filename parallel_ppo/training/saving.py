"""Writing checkpoints: atomically, verified, and without a copy of what is saved.

A checkpoint is written under a temporary name, synced, read back, and renamed; older ones go last.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parallel_ppo.exits import StorageError
from parallel_ppo.memory.snapshots import Snapshot
from parallel_ppo.storage.array_files import pieces_of
from parallel_ppo.storage.files import (
    TEMPORARY,
    Damaged,
    Pieces,
    holds_exactly,
    sync_directory,
    temporary_beside,
    write_durably,
)
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training.checkpoint import (
    ENVIRONMENTS,
    FORMAT,
    MANIFEST,
    MOVED_ASIDE,
    POLICY,
    TRAINING,
    canonical,
    num_steps,
    read_manifest,
    steps,
)
from parallel_ppo.version import ARITHMETIC
from parallel_ppo.workers.observer import make_observer

MAX_FAILURES = 3


def save(
    directory: Path,
    snapshot: Snapshot,
    *,
    weights: dict[str, np.ndarray],
    metadata: dict[str, str],
    policy_sha256: str,
    learning: dict[str, Any],
) -> Path:
    """`directory` is `checkpoints/`. Returns the new `step_<n>`."""
    make_observer(None)("checkpoint", snapshot.counters["iteration"])
    target = directory / f"step_{snapshot.counters['env_steps']}"
    contents = {
        POLICY: pieces_of(weights, metadata),
        TRAINING: pieces_of({k: v for k, v in snapshot.arrays.items() if k != "parameters"}),
        ENVIRONMENTS: pieces_of(snapshot.environments.pack()),
    }
    manifest = _manifest(contents, snapshot, policy_sha256, learning)
    if not _holds(target, contents, manifest):
        os.makedirs(directory, exist_ok=True)
        _clear_leftovers(directory)
        temporary = directory / f"{TEMPORARY}{target.name}"
        try:
            _write(temporary, contents, manifest)
            if target.exists():
                os.rename(target, directory / f"{MOVED_ASIDE}{target.name}")
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space more than we do
            raise
        sync_directory(directory)
    point(directory, "latest", target)
    return target


def _manifest(
    contents: dict[str, Pieces], snapshot: Snapshot, policy_sha256: str, learning: dict[str, Any]
) -> bytes:
    manifest = {
        "format": FORMAT,
        "arithmetic": ARITHMETIC,
        "counters": snapshot.counters,
        "policy_sha256": policy_sha256,
        "learning": learning,
        "files": {
            name: {"bytes": sum(map(len, data)), "sha256": _sha256(data)} for name, data in contents.items()
        },
    }
    plain = json.loads(json.dumps(manifest))  # as it will be read
    return json.dumps(plain | {"signature": signature(canonical(plain))}, indent=1).encode()


def _write(temporary: Path, contents: dict[str, Pieces], manifest: bytes) -> None:
    """All files of a checkpoint, on the disk and read back."""
    os.mkdir(temporary)
    for name, data in contents.items():
        write_durably(temporary / name, *data)
    write_durably(temporary / MANIFEST, manifest)
    read_manifest(temporary)
    for name, data in contents.items():
        if not holds_exactly(temporary / name, data):
            raise Damaged(f"{temporary / name} does not hold what was written into it")
    sync_directory(temporary)


def _sha256(pieces: Pieces) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _holds(path: Path, contents: dict[str, Pieces], manifest: bytes) -> bool:
    """True if this very state was saved before: a resumed run begins by saving its start."""
    try:
        return all(
            holds_exactly(path / name, data)
            for name, data in [(MANIFEST, [memoryview(manifest)]), *contents.items()]
        )
    except Damaged:
        return False


def _clear_leftovers(directory: Path) -> None:
    replaced = [
        path
        for path in directory.glob(f"{MOVED_ASIDE}*")
        if (directory / path.name.removeprefix(MOVED_ASIDE)).exists()
    ]
    for leftover in [*directory.glob(f"{TEMPORARY}*"), *replaced]:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            os.unlink(leftover)


def point(directory: Path, name: str, target: Path) -> None:
    """A relative link, replaced in one step."""
    temporary = temporary_beside(directory / name)
    os.symlink(target.name, temporary)
    os.replace(temporary, directory / name)


def prune(directory: Path, keep: int, newest: Path) -> None:
    """Removes the oldest beyond `keep`, but never one that `latest` or `best` points to. A checkpoint is renamed
    before it is removed, so half of one is never read. Folders of later steps than `newest` are not this run's: they
    neither count nor go.
    """
    pinned = set()
    for name in ("latest", "best"):
        with contextlib.suppress(OSError):
            pinned.add(os.readlink(directory / name))
    own = [path for path in steps(directory) if num_steps(path) <= num_steps(newest)]
    for old in own[keep:]:
        if old.name not in pinned:
            os.rename(old, directory / f"{TEMPORARY}old-{old.name}")
    _clear_leftovers(directory)


class Keeper:
    """Saves, keeps the last few checkpoints and the best, and tolerates a full disk for a while."""

    def __init__(self, directory: Path, *, keep: int, warn: Callable[[str], None]) -> None:
        self.directory, self.keep, self.warn = directory, keep, warn
        self.failures = 0

    def save(self, snapshot: Snapshot, *, before: Callable[[], None], is_best: bool, **contents: Any) -> bool:
        """False, with a warning, when it could not be written; StorageError after several failures in a row.

        `before` brings the logs to the disk: a checkpoint is never ahead of them.
        """
        try:
            before()
            target = save(self.directory, snapshot, **contents)
            if is_best:
                point(self.directory, "best", target)
            prune(self.directory, self.keep, target)
        except (OSError, Damaged) as error:
            self.failures += 1
            detail = (
                f"{self.directory}: the checkpoint could not be written ({error}); earlier ones are untouched"
            )
            if self.failures >= MAX_FAILURES:
                raise StorageError(
                    f"{detail}; this was failure {self.failures} in a row: free some space and use --resume"
                ) from None
            self.warn(detail)
            return False
        self.failures = 0
        return True
