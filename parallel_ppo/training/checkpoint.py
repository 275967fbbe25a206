"""Checkpoints: what one is, and how it is verified and loaded. `saving.py` writes them.

`step_<n>/` holds the policy, the optimizer and the features' state, the environments' states (safetensors:
nothing is ever executed) and a manifest with sizes and checksums. Procgen's native reader trusts its
input, so environment states carry a signature (`storage/user_key.py`).
"""

import hashlib
import hmac
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.exits import InputError
from parallel_ppo.memory.snapshots import Saved, Snapshot
from parallel_ppo.storage.array_files import parse_arrays
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.storage.user_key import VARIABLE as KEY_VARIABLE
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training.state import Counters

FORMAT = 1
MANIFEST = "manifest.json"
POLICY = "policy.safetensors"
TRAINING = "training.safetensors"
ENVIRONMENTS = "environments.safetensors"
FILES = (POLICY, TRAINING, ENVIRONMENTS)
FORMER_NAMES = {"adam_steps": "optimizer_steps"}  # of counters, in checkpoints of earlier versions
MAX_MANIFEST = 1 << 20
HEADROOM = 1 << 20  # for headers and what grows with the run
MOVED_ASIDE = ".replaced-"  # a step that is saved again, until its successor has its place


class Expected(NamedTuple):
    """A checkpoint must fit this: a fresh state of the same settings, and the shapes of the weights."""

    state: Snapshot
    weights: dict[str, tuple[int, ...]]
    learning: dict[str, Any]
    policy_sha256: Callable[[dict[str, np.ndarray]], str]
    misfit: Callable[[dict[str, np.ndarray]], str | None]  # the problem with saved arrays, or None

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


def num_steps(path: Path) -> int:
    """The environment steps that a finished checkpoint is named after."""
    return int(path.name.rpartition("_")[2])


def read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(read_regular(file, MAX_MANIFEST))
        if manifest["format"] != FORMAT:
            shown = repr(manifest["format"])[:40]
            raise Damaged(f"{file} has the format {shown}, this version reads {FORMAT}")
        found = {FORMER_NAMES.get(name, name): value for name, value in manifest["counters"].items()}
        counters = Counters(**found)  # TypeError for an unknown name
        if not _are_possible(counters):
            raise Damaged(f"{file} has impossible counters")
        manifest["counters"] = vars(counters)
        for name in FILES:
            entry = manifest["files"][name]
            if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
                raise Damaged(f"{file} does not describe {name}")
        if not isinstance(manifest["policy_sha256"], str) or not isinstance(manifest["learning"], dict):
            raise Damaged(f"{file} has no policy_sha256 or learning settings")
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


def read_file(path: Path, name: str, manifest: dict[str, Any], max_bytes: int) -> bytes:
    entry, file = manifest["files"][name], path / name
    data = read_regular(file, max_bytes)
    if len(data) != entry["bytes"]:
        raise Damaged(f"{file} has {len(data)} bytes, its manifest says {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"{file} does not match its checksum")
    return data


def read_policy(path: Path, max_bytes: int) -> bytes:
    """The policy of the checkpoint `step_<n>/`, as its manifest describes it."""
    return read_file(path, POLICY, read_manifest(path), max_bytes)


def load(path: Path, *, trust: bool, expected: Expected) -> tuple[Saved, dict[str, np.ndarray]]:
    """A checkpoint that fits, and its weights by name. Raises Damaged for one that does not."""
    manifest = read_manifest(path)
    if path.name.removeprefix(MOVED_ASIDE) != f"step_{manifest['counters']['env_steps']}":
        raise Damaged(f"{path} is a copy of step_{manifest['counters']['env_steps']} under another name")
    data = {name: read_file(path, name, manifest, expected.max_bytes(name)) for name in FILES}
    weights = parse_arrays(data[POLICY], str(path / POLICY))
    _check_weights(weights, manifest, expected, path)
    arrays = parse_arrays(data[TRAINING], str(path / TRAINING))
    problem = expected.misfit({"parameters": expected.state.arrays["parameters"], **arrays})
    if problem is not None:
        raise Damaged(f"{path / TRAINING}: {problem}")
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
