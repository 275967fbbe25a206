"""Checkpoints: atomic, verified, safe to load.

`step_<n>/` holds the policy, the optimizer and normalisers, the environments' states (safetensors: nothing is ever executed) and
a manifest with sizes and checksums. It is written under a temporary name, synced, read back, and renamed; older ones go last.
Procgen's native reader trusts its input, so environment states carry an HMAC under a per-user key.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from parallel_ppo.exits import InputError, StorageError
from parallel_ppo.files import sync_directory, write_durably
from parallel_ppo.state import Counters, Snapshot

FORMAT = 1
MANIFEST = "manifest.json"
POLICY = "policy.safetensors"
TRAINING = "training.safetensors"
ENVIRONMENTS = "environments.safetensors"
MAX_MANIFEST = 1 << 20
MAX_FAILURES = 3


class Damaged(Exception):
    """A checkpoint that must not be used, and why, in one line."""


# --- writing --------------------------------------------------------------------------------------------------------------


def save(
    directory: Path,
    snapshot: Snapshot,
    *,
    weights: dict[str, np.ndarray],
    metadata: dict[str, str],
    policy_sha256: str,
) -> Path:
    """`directory` is `checkpoints/`. Returns the new `step_<n>`."""
    target = directory / f"step_{snapshot.counters['env_steps']}"
    if is_valid(target, policy_sha256):
        return target
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = directory / f".writing-{target.name}"
    temporary.mkdir()
    environments = _pack_environments(snapshot.environments)
    contents = {
        POLICY: safetensors.save(weights, metadata),
        TRAINING: safetensors.save(
            {name: array for name, array in snapshot.arrays.items() if name != "parameters"}
        ),
        ENVIRONMENTS: safetensors.save(environments),
    }
    for name, data in contents.items():
        write_durably(temporary / name, data)
    manifest = {
        "format": FORMAT,
        "counters": snapshot.counters,
        "policy_sha256": policy_sha256,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        },
        "environments_hmac": signature(contents[ENVIRONMENTS]),
    }
    write_durably(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
    _read_manifest(temporary)
    for name in contents:
        _read_file(temporary, name, manifest)
    sync_directory(temporary)
    if target.exists():
        target.rename(directory / f".writing-old-{target.name}")
    temporary.rename(target)
    sync_directory(directory)
    point(directory, "latest", target)
    return target


def point(directory: Path, name: str, target: Path) -> None:
    """A relative link, replaced in one step."""
    temporary = directory / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    os.replace(temporary, directory / name)


def prune(directory: Path, keep: int) -> None:
    """The oldest beyond `keep` go, but never one that `latest` or `best` points to."""
    pinned = {
        (directory / name).resolve().name for name in ("latest", "best") if (directory / name).is_symlink()
    }
    for old in steps(directory)[keep:]:
        if old.name not in pinned:
            shutil.rmtree(old, ignore_errors=True)
    for leftover in directory.glob(".writing-old-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _pack_environments(environments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    lengths = environments["state_length"]
    used = [row[:length] for row, length in zip(environments["state_bytes"], lengths, strict=True)]
    return {
        "carry_observation": np.ascontiguousarray(environments["carry_observation"]),
        "carry_start": np.ascontiguousarray(environments["carry_start"]),
        "state_length": np.ascontiguousarray(lengths),
        "state_bytes": np.concatenate(used),
    }


# --- the key of the environment states ------------------------------------------------------------------------------------


def _user_key() -> bytes:
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = base / "parallel_ppo" / "key"
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".key-{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()
    return path.read_bytes()


def signature(data: bytes) -> str | None:
    """None where no key can be kept: such data need --trust-checkpoint."""
    try:
        return hmac.new(_user_key(), data, hashlib.sha256).hexdigest()
    except OSError:
        return None


# --- reading --------------------------------------------------------------------------------------------------------------


def steps(directory: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    found = [
        (int(path.name[5:]), path)
        for path in directory.glob("step_*")
        if path.name[5:].isdigit() and len(path.name) < 30
    ]
    return [path for _, path in sorted(found, reverse=True)]


def is_valid(path: Path, policy_sha256: str) -> bool:
    try:
        manifest = _read_manifest(path)
        for name in (POLICY, TRAINING, ENVIRONMENTS):
            _read_file(path, name, manifest)
    except (Damaged, OSError):
        return False
    return manifest["policy_sha256"] == policy_sha256


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST:
            raise Damaged(f"{file} is too large for a manifest")
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise Damaged(f"{file} has the format {manifest['format']!r}, this version reads {FORMAT}")
        Counters(**manifest["counters"])
        numbers = ("iteration", "env_steps", "adam_steps", "episodes", "worker_restarts")
        if not all(
            type(manifest["counters"][name]) is int and 0 <= manifest["counters"][name] < 2**62
            for name in numbers
        ):
            raise Damaged(f"{file} has impossible counters")
        for name in (POLICY, TRAINING, ENVIRONMENTS):
            entry = manifest["files"][name]
            if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
                raise Damaged(f"{file} does not describe {name}")
        return manifest
    except Damaged:
        raise
    except FileNotFoundError:
        raise Damaged(f"{file} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} cannot be read ({type(error).__name__})") from None


def _read_file(path: Path, name: str, manifest: dict[str, Any]) -> bytes:
    entry, file = manifest["files"][name], path / name
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise Damaged(f"{file} has {size} bytes, its manifest says {entry['bytes']}")
        data = file.read_bytes()
    except OSError as error:
        raise Damaged(f"{file} cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"{file} does not match its checksum")
    return data


def read_policy(path: Path) -> bytes:
    """The policy of the checkpoint `step_<n>/`, as its manifest describes it."""
    return _read_file(path, POLICY, _read_manifest(path))


def parse_arrays(data: bytes, what: str) -> dict[str, np.ndarray]:
    try:
        return safetensors.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise Damaged(f"{what} is not a safetensors file ({' '.join(str(error).split())[:120]})") from None


def load(path: Path, *, trust: bool, like: Snapshot) -> tuple[Snapshot, dict[str, np.ndarray]]:
    """A checkpoint whose arrays fit those of `like` (a fresh state of the same settings), and its weights by name."""
    manifest = _read_manifest(path)
    data = {name: _read_file(path, name, manifest) for name in (POLICY, TRAINING, ENVIRONMENTS)}
    expected = signature(data[ENVIRONMENTS])
    if not trust and not (expected and hmac.compare_digest(expected, str(manifest.get("environments_hmac")))):
        raise InputError(
            f"{path / ENVIRONMENTS}: was not written by this user; environment states from strangers can harm. Use --trust-checkpoint if you know where it comes from"
        )
    weights = parse_arrays(data[POLICY], str(path / POLICY))
    arrays = parse_arrays(data[TRAINING], str(path / TRAINING))
    for name, array in like.arrays.items():
        if name == "parameters":
            continue
        found = arrays.get(name)
        sized = name.startswith("recent.")
        if (
            found is None
            or found.dtype != array.dtype
            or (found.shape != array.shape and not (sized and found.ndim == 1 and len(found) <= 1000))
        ):
            raise Damaged(f"{path / TRAINING}: {name} does not fit this run")
    environments = _unpack_environments(
        parse_arrays(data[ENVIRONMENTS], str(path / ENVIRONMENTS)), like.environments, path
    )
    return Snapshot(manifest["counters"], arrays, environments), weights


def _unpack_environments(
    packed: dict[str, np.ndarray], like: dict[str, np.ndarray], path: Path
) -> dict[str, np.ndarray]:
    for name in ("carry_observation", "carry_start", "state_length"):
        if (
            name not in packed
            or packed[name].shape != like[name].shape
            or packed[name].dtype != like[name].dtype
        ):
            raise Damaged(f"{path / ENVIRONMENTS}: {name} does not fit this run")
    lengths, data = packed["state_length"], packed.get("state_bytes", np.zeros(0, np.uint8))
    capacity = like["state_bytes"].shape[1]
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or (lengths < 0).any()
        or (lengths > capacity).any()
        or lengths.sum() != len(data)
    ):
        raise Damaged(f"{path / ENVIRONMENTS}: the environments' states do not add up")
    return packed


def newest(
    directory: Path, *, trust: bool, like: Snapshot
) -> tuple[Path, Snapshot, dict[str, np.ndarray], list[str]]:
    """The newest checkpoint that is whole, and a line for each that was passed over."""
    refused: list[str] = []
    for path in steps(directory):
        try:
            snapshot, weights = load(path, trust=trust, like=like)
            return path, snapshot, weights, refused
        except Damaged as problem:
            refused.append(str(problem))
    detail = f" ({refused[0]})" if refused else ""
    raise InputError(f"{directory}: holds no checkpoint that can be resumed{detail}")


class Keeper:
    """Saves when due, keeps the last few and the best, survives a full disk for a while."""

    def __init__(self, directory: Path, *, keep: int, warn: Any) -> None:
        self.directory, self.keep, self.warn = directory, keep, warn
        self.failures = 0

    def save(self, snapshot: Snapshot, *, is_best: bool, **contents: Any) -> bool:
        """False, with a warning, when it could not be written; StorageError after several failures in a row."""
        try:
            target = save(self.directory, snapshot, **contents)
            if is_best:
                point(self.directory, "best", target)
            prune(self.directory, self.keep)
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
