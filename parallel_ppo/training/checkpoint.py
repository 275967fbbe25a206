"""The format of checkpoints, and how one is verified and loaded. `saving.py` writes them.

`step_<n>/` holds the policy, the optimizer and normalizers, the states of the environments (safetensors:
nothing is ever executed) and a manifest with counters, learning settings, sizes and checksums. Procgen's
native reader of states trusts its input, so the manifest carries a signature (`storage/user_key.py`).
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from parallel_ppo.exits import InputError
from parallel_ppo.memory.snapshots import Saved, Snapshot
from parallel_ppo.storage.array_files import parse_arrays
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.storage.user_key import VARIABLE as KEY_VARIABLE
from parallel_ppo.storage.user_key import is_signed, signature

FORMAT = 2
MANIFEST = "manifest.json"
POLICY = "policy.safetensors"
TRAINING = "training.safetensors"
ENVIRONMENTS = "environments.safetensors"
FILES = (POLICY, TRAINING, ENVIRONMENTS)
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

    @property
    def steps_per_iteration(self) -> int:
        return self.learning["env.num_envs"] * self.learning["training.n_steps"]

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


Number = Annotated[float, Field(gt=-1e300, lt=1e300)]
Count = Annotated[int, Field(ge=0, lt=2**62)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class SavedCounters(_Record):
    model_config = ConfigDict(extra="forbid")

    iteration: Annotated[int, Field(ge=0, le=10**9)]
    env_steps: Count
    optimizer_steps: Count = Field(validation_alias=AliasChoices("optimizer_steps", "adam_steps"))
    episodes: Count
    wall_time: Annotated[float, Field(ge=0, lt=1e300)] = 0.0
    worker_restarts: Count
    bit_exact: bool = True
    best_return: Number | None = None


class SavedFile(_Record):
    bytes: Count
    sha256: str


class Manifest(_Record):
    """Everything that a checkpoint says about itself."""

    format: int
    arithmetic: int = 1  # `version.ARITHMETIC` of the session that saved it
    counters: SavedCounters
    policy_sha256: str
    learning: dict[str, Any]
    files: dict[str, SavedFile]
    signature: str | None = None  # of the manifest itself, and so of the sums of all files
    environments_hmac: str | None = None  # format 1: of the environments' file alone
    signed: bytes  # what `signature` is of


def read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        content = json.loads(read_regular(file, MAX_MANIFEST))
        if content["format"] not in (1, FORMAT):
            raise Damaged(f"{file} has the format {content['format']!r:.40}, this version reads {FORMAT}")
        manifest = Manifest.model_validate(content | {"signed": canonical(content)})
        if not manifest.files.keys() >= set(FILES):
            raise Damaged(f"{file} does not describe {', '.join(FILES)}")
        return manifest
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise Damaged(f"{file} is not a manifest ({where[:80]}: {problem['msg']})") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{file} is not a manifest ({type(error).__name__})") from None


def canonical(manifest: dict[str, Any]) -> bytes:
    """The signed bytes of a manifest: everything but the signature, and so also the checksums of all files."""
    unsigned = {key: value for key, value in manifest.items() if key != "signature"}
    return json.dumps(unsigned, sort_keys=True).encode()


def read_file(path: Path, name: str, manifest: Manifest, max_bytes: int) -> bytes:
    entry, file = manifest.files[name], path / name
    data = read_regular(file, max_bytes)
    if len(data) != entry.bytes:
        raise Damaged(f"{file} has {len(data)} bytes, its manifest says {entry.bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise Damaged(f"{file} does not match its checksum")
    return data


def read_policy(path: Path, max_bytes: int) -> bytes:
    """The policy of the checkpoint `step_<n>/`, as its manifest describes it."""
    return read_file(path, POLICY, read_manifest(path), max_bytes)


def load(path: Path, *, trust: bool, expected: Expected) -> tuple[Saved, dict[str, np.ndarray]]:
    """A checkpoint that fits, and its weights by name. Raises Damaged for one that does not."""
    manifest = read_manifest(path)
    counters = manifest.counters
    if path.name.removeprefix(MOVED_ASIDE) != f"step_{counters.env_steps}":
        raise Damaged(f"{path} is a copy of step_{counters.env_steps} under another name")
    data = {name: read_file(path, name, manifest, expected.max_bytes(name)) for name in FILES}
    weights = parse_arrays(data[POLICY], str(path / POLICY))
    _check_weights(weights, manifest, expected, path)
    arrays = parse_arrays(data[TRAINING], str(path / TRAINING))
    problem = expected.misfit({"parameters": expected.state.arrays["parameters"], **arrays})
    if problem is not None:
        raise Damaged(f"{path / TRAINING}: {problem}")
    if not trust:
        _check_signature(manifest, data[ENVIRONMENTS], path)
    environments = parse_arrays(data[ENVIRONMENTS], str(path / ENVIRONMENTS))
    problem = expected.state.environments.misfit(environments)
    if problem is not None:
        raise Damaged(f"{path / ENVIRONMENTS}: {problem}")
    _check_learning(manifest.learning, expected.learning, path)
    if counters.env_steps != counters.iteration * expected.steps_per_iteration:
        raise Damaged(
            f"{path / MANIFEST}: {counters.iteration} iterations are not {counters.env_steps} steps"
        )
    kept = {name: arrays[name] for name in expected.state.arrays if name != "parameters"}
    return Saved(counters.model_dump(), kept, environments), weights


def _check_weights(
    weights: dict[str, np.ndarray], manifest: Manifest, expected: Expected, path: Path
) -> None:
    for name, shape in expected.weights.items():
        found = weights.get(name)
        if found is None or found.shape != shape or found.dtype != np.float32:
            raise Damaged(f"{path / POLICY} has no {name} of shape {shape}; it belongs to another network")
        if not np.isfinite(found).all():
            raise Damaged(f"{path / POLICY}: {name} is not finite")
    if expected.policy_sha256(weights) != manifest.policy_sha256:
        raise Damaged(f"{path / POLICY} is not the policy of its manifest")


def _check_signature(manifest: Manifest, environments: bytes, path: Path) -> None:
    given, signed = manifest.signature, manifest.signed
    if manifest.format == 1:
        given, signed = manifest.environments_hmac, environments
    if not is_signed(given or "", signed):
        reason = "was not signed with this user's key"
        if signature(b"") is None:
            reason = "cannot be checked, because this user has no key"
        raise Damaged(
            f"{path / ENVIRONMENTS}: {reason}; environment states of others can harm. Set {KEY_VARIABLE} to"
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
