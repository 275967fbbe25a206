"""Checkpoints: atomic, verified, safe to load.

`step_<n>/` holds the policy, the optimizer and normalisers, the environments' states (safetensors:
nothing is ever executed) and a manifest with sizes and checksums. It is written under a temporary name,
synced, read back, and renamed; older ones go last. Procgen's native reader trusts its input, so
environment states carry a signature (`storage/user_key.py`).
"""

import contextlib
import hashlib
import hmac
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from parallel_ppo.exits import InputError, StorageError
from parallel_ppo.storage.files import (
    TEMPORARY,
    Damaged,
    read_regular,
    sync_directory,
    temporary_beside,
    write_durably,
)
from parallel_ppo.storage.user_key import VARIABLE as KEY_VARIABLE
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training.state import RECENT, Counters
from parallel_ppo.workers.carried import Saved, Snapshot
from parallel_ppo.workers.observer import make_observer

FORMAT = 1
MANIFEST = "manifest.json"
POLICY = "policy.safetensors"
TRAINING = "training.safetensors"
ENVIRONMENTS = "environments.safetensors"
FILES = (POLICY, TRAINING, ENVIRONMENTS)
FORMER_NAMES = {"adam_steps": "optimizer_steps"}  # of counters, in checkpoints of earlier versions
MAX_MANIFEST = 1 << 20
HEADROOM = 1 << 20  # for headers and what grows with the run
MAX_FAILURES = 3
MOVED_ASIDE = ".replaced-"  # a step that is saved again, until its successor has its place


# --- writing ------------------------------------------------------------------------------------------------


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
    environments = safetensors.save(snapshot.environments.pack())
    if not _holds(target, policy_sha256, environments):
        os.makedirs(directory, exist_ok=True)
        _clear_leftovers(directory)
        temporary = directory / f"{TEMPORARY}{target.name}"
        contents = {
            POLICY: safetensors.save(weights, metadata),
            TRAINING: safetensors.save({k: v for k, v in snapshot.arrays.items() if k != "parameters"}),
            ENVIRONMENTS: environments,
        }
        try:
            _write(temporary, contents, snapshot, policy_sha256, learning)
            if target.exists():
                os.rename(target, directory / f"{MOVED_ASIDE}{target.name}")
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space more than we do
            raise
        sync_directory(directory)
    point(directory, "latest", target)
    return target


def _write(
    temporary: Path,
    contents: dict[str, bytes],
    snapshot: Snapshot,
    policy_sha256: str,
    learning: dict[str, Any],
) -> None:
    """All files of a checkpoint, on the disk and read back."""
    os.mkdir(temporary)
    for name, data in contents.items():
        write_durably(temporary / name, data)
    manifest = {
        "format": FORMAT,
        "counters": snapshot.counters,
        "policy_sha256": policy_sha256,
        "learning": learning,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        },
        "environments_hmac": signature(contents[ENVIRONMENTS]),
    }
    write_durably(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
    written = _read_manifest(temporary)
    for name, data in contents.items():
        _read_file(temporary, name, written, len(data))
    sync_directory(temporary)


def _holds(path: Path, policy_sha256: str, environments: bytes) -> bool:
    """Is this very state there already, whole and signed by this user? (A resumed run starts by saving
    where it starts.)
    """
    try:
        manifest = _read_manifest(path)
        for name in FILES:
            _read_file(path, name, manifest, manifest["files"][name]["bytes"])
    except Damaged:
        return False
    return manifest["policy_sha256"] == policy_sha256 and manifest["environments_hmac"] == signature(
        environments
    )


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


def prune(directory: Path, keep: int) -> None:
    """The oldest beyond `keep` go, but never one that `latest` or `best` points to. What is going no
    longer looks like one.
    """
    pinned = set()
    for name in ("latest", "best"):
        with contextlib.suppress(OSError):
            pinned.add(os.readlink(directory / name))
    for old in steps(directory)[keep:]:
        if old.name not in pinned:
            os.rename(old, directory / f"{TEMPORARY}old-{old.name}")
    _clear_leftovers(directory)


# --- reading ------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """What a checkpoint must fit: a fresh state of the same settings, and the shapes of the weights."""

    state: Snapshot
    weights: dict[str, tuple[int, ...]]
    learning: dict[str, Any]
    policy_sha256: Callable[[dict[str, np.ndarray]], str]

    def max_bytes(self, name: str) -> int:
        if name == ENVIRONMENTS:
            return self.state.environments.num_bytes + HEADROOM
        return sum(array.nbytes for array in self.state.arrays.values()) + HEADROOM


def steps(directory: Path) -> list[Path]:
    """Finished checkpoints, newest first. One that was moved aside counts until its successor has its
    place.
    """
    found = {}
    for path in [*directory.glob(f"{MOVED_ASIDE}step_*"), *directory.glob("step_*")]:
        name = path.name.removeprefix(MOVED_ASIDE)
        if name[5:].isascii() and name[5:].isdigit() and len(name) < 30:
            found[int(name[5:]), name] = path
    return [found[key] for key in sorted(found, reverse=True)]


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(read_regular(file, MAX_MANIFEST))
        if manifest["format"] != FORMAT:
            shown = repr(manifest["format"])[:40]
            raise Damaged(f"{file} has the format {shown}, this version reads {FORMAT}")
        found = {FORMER_NAMES.get(name, name): value for name, value in manifest["counters"].items()}
        counters = Counters(**found)  # TypeError for a name nobody knows
        if not _are_possible(counters):
            raise Damaged(f"{file} has impossible counters")
        manifest["counters"] = vars(counters)
        for name in FILES:
            entry = manifest["files"][name]
            if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
                raise Damaged(f"{file} does not describe {name}")
        if not isinstance(manifest["policy_sha256"], str) or not isinstance(manifest["learning"], dict):
            raise Damaged(f"{file} does not say what was learned")
        if not isinstance(manifest["environments_hmac"], (str, type(None))):
            raise Damaged(f"{file} has no readable signature")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} is not a manifest ({type(error).__name__})") from None


def _are_possible(counters: Counters) -> bool:
    whole = (
        counters.iteration,
        counters.env_steps,
        counters.optimizer_steps,
        counters.episodes,
        counters.worker_restarts,
    )
    real = (counters.wall_time, 0.0 if counters.best_return is None else counters.best_return)
    return (
        all(type(value) is int and 0 <= value < 2**62 for value in whole)
        and all(type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300 for value in real)
        and counters.wall_time >= 0
        and type(counters.bit_exact) is bool
    )


def _read_file(path: Path, name: str, manifest: dict[str, Any], max_bytes: int) -> bytes:
    entry, file = manifest["files"][name], path / name
    data = read_regular(file, max_bytes)
    if len(data) != entry["bytes"]:
        raise Damaged(f"{file} has {len(data)} bytes, its manifest says {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"{file} does not match its checksum")
    return data


def read_policy(path: Path, max_bytes: int) -> bytes:
    """The policy of the checkpoint `step_<n>/`, as its manifest describes it."""
    return _read_file(path, POLICY, _read_manifest(path), max_bytes)


def parse_arrays(data: bytes, what: str) -> dict[str, np.ndarray]:
    try:
        return safetensors.load(data)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise Damaged(f"{what} is not a safetensors file ({' '.join(str(error).split())[:120]})") from None


def load(path: Path, *, trust: bool, expected: Expected) -> tuple[Saved, dict[str, np.ndarray]]:
    """A checkpoint that fits, and its weights by name. Damaged says what does not."""
    manifest = _read_manifest(path)
    if path.name.removeprefix(MOVED_ASIDE) != f"step_{manifest['counters']['env_steps']}":
        raise Damaged(f"{path} is a copy of step_{manifest['counters']['env_steps']} under another name")
    data = {name: _read_file(path, name, manifest, expected.max_bytes(name)) for name in FILES}
    weights = parse_arrays(data[POLICY], str(path / POLICY))
    _check_weights(weights, manifest, expected, path)
    arrays = parse_arrays(data[TRAINING], str(path / TRAINING))
    _check_arrays(arrays, expected.state.arrays, path / TRAINING)
    _check_signature(data[ENVIRONMENTS], manifest, path, trust)
    environments = parse_arrays(data[ENVIRONMENTS], str(path / ENVIRONMENTS))
    problem = expected.state.environments.misfit(environments)
    if problem is not None:
        raise Damaged(f"{path / ENVIRONMENTS}: {problem}")
    _check_learning(manifest["learning"], expected.learning, path)
    kept = {name: arrays[name] for name in expected.state.arrays if name != "parameters"}
    return Saved(manifest["counters"], kept, environments), weights


def _check_weights(
    weights: dict[str, np.ndarray], manifest: dict[str, Any], expected: Expected, path: Path
) -> None:
    for name, shape in expected.weights.items():
        found = weights.get(name)
        if found is None or found.shape != shape or found.dtype != np.float32:
            raise Damaged(f"{path / POLICY} has no {name} of shape {shape}; it belongs to another network")
        if not np.isfinite(found).all():
            raise Damaged(f"{path / POLICY}: {name} is not finite")
    if expected.policy_sha256(weights) != manifest["policy_sha256"]:
        raise Damaged(f"{path / POLICY} is not the policy of its manifest")


def _check_arrays(arrays: dict[str, np.ndarray], like: dict[str, np.ndarray], file: Path) -> None:
    for name, array in like.items():
        if name == "parameters":
            continue
        found = arrays.get(name)
        is_list = name.startswith("recent.")
        if (
            found is None
            or found.dtype != array.dtype
            or (found.shape != array.shape and not (is_list and found.ndim == 1 and len(found) <= RECENT))
        ):
            raise Damaged(f"{file}: {name} does not fit this run")
        is_never_negative = name.endswith((".count", ".squares", "second_moment", "length", "lengths"))
        if not np.isfinite(found).all() or (is_never_negative and (found < 0).any()):
            raise Damaged(f"{file}: {name} holds impossible numbers")
    if len(arrays["recent.returns"]) != len(arrays["recent.lengths"]):
        raise Damaged(f"{file}: returns and lengths of recent episodes differ in number")


def _check_signature(data: bytes, manifest: dict[str, Any], path: Path, trust: bool) -> None:
    own = signature(data)
    if trust or (
        own and hmac.compare_digest(own.encode(), str(manifest["environments_hmac"]).encode(errors="replace"))
    ):
        return
    reason = (
        "was not signed with this user's key" if own else "cannot be checked, because this user has no key"
    )
    raise Damaged(
        f"{path / ENVIRONMENTS}: {reason}; environment states from strangers can harm. Set {KEY_VARIABLE} to"
        " the key of the run, or use --trust-checkpoint if you know where it comes from"
    )


def _check_learning(saved: dict[str, Any], given: dict[str, Any], path: Path) -> None:
    """config.yaml may have been edited since; what was learned with other settings cannot be continued
    with these.
    """
    now = json.loads(json.dumps(given))
    for key, value in saved.items():
        if key in now and now[key] != value:
            raise InputError(
                f"{key}: is {now[key]!r} in the run's config.yaml, but {path.name} was learned with"
                f" {repr(value)[:80]}; restore that value"
            )


def newest(
    directory: Path, *, trust: bool, expected: Expected
) -> tuple[Path, Saved, dict[str, np.ndarray], list[str]] | None:
    """The newest checkpoint that is whole and trusted, and a line for each that was passed over. None
    when there is none at all.
    """
    refused: list[str] = []
    for path in steps(directory):
        try:
            snapshot, weights = load(path, trust=trust, expected=expected)
            return path, snapshot, weights, refused
        except Damaged as problem:
            refused.append(str(problem))
    if not refused:
        return None
    raise InputError(f"{directory}: holds no checkpoint that can be resumed ({refused[0]})")


# --- keeping ------------------------------------------------------------------------------------------------


class Keeper:
    """Saves when due, keeps the last few and the best, survives a full disk for a while."""

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
