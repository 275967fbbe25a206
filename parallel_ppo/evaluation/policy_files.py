"""Finds and loads the weights of a policy outside their run.

Loading executes no code. Names, shapes and types must fit the network that the file's settings describe.
"""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_ppo.arguments import named_run
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.envs.spaces import action_writer, observation_reader, spaces_from_text
from parallel_ppo.evaluation import hub
from parallel_ppo.exits import InputError
from parallel_ppo.features.moments import EPSILON
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.parameters import num_flat, sha256, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import read_settings
from parallel_ppo.settings.rules import checked
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.array_files import metadata_of, parse_arrays
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.storage.run_directory import SHARED, RunDirectory, run_of
from parallel_ppo.storage.user_key import is_signed
from parallel_ppo.training import checkpoint
from parallel_ppo.training.checkpoint import POLICY
from parallel_ppo.training.origin import named_code, refuse
from parallel_ppo.training.planning import resolve_policy

FORMAT = "parallel_ppo policy 1"
PICKLES = (".pt", ".pth", ".pkl", ".ckpt")
PROVENANCE = SHARED  # beside weights that were shared: what they must be
MAX_BYTES, MAX_PROVENANCE = 1 << 30, 1 << 20
NORMALIZER = ("count", "mean", "squares")


class Weights(NamedTuple):
    """A file with a valid description. `fill` checks the arrays."""

    path: Path
    settings: Settings
    spec: EnvSpec
    env_steps: int
    arrays: dict[str, np.ndarray]


class Filled(NamedTuple):
    """Checked weights in the places where a policy reads them."""

    parameters: np.ndarray  # flat, see policy.views
    observation_mean: np.ndarray
    observation_scale: np.ndarray
    policy_sha256: str


# --- finding ------------------------------------------------------------------------------------------------


def candidates(path: Path) -> tuple[list[Path], str | None]:
    """Files to try in order of preference, and a note if the given name is not used."""
    if path.suffix in PICKLES:
        beside = path.with_suffix(".safetensors")
        if beside.is_file():
            return [beside], f"{path}: weights are kept as safetensors; using {beside}"
        if path.is_file():
            raise InputError(
                f"{path}: looks like a pickle, which could execute anything when loaded; expected a"
                " .safetensors file"
            )
    if path.is_dir():
        return _in_directory(path), None
    if not path.exists():
        raise InputError(
            f"{path}: no such file or directory; expected weights (.safetensors) or the directory of a run"
        )
    return [path], None


def _in_directory(path: Path) -> list[Path]:
    """`latest`, then older checkpoints, then final weights without a checkpoint."""
    if (path / POLICY).is_file():
        return [path / POLICY]
    where = path
    if (path / "config.yaml").is_file():
        where = RunDirectory.existing(path).checkpoints
    elif (path / "checkpoints").is_dir():
        where = path / "checkpoints"
    latest = where / "latest"
    if (
        latest.is_symlink()
    ):  # to a step beside it: elsewhere are other runs, where results must not be written
        latest = where / Path(os.readlink(latest)).name
    steps = dict.fromkeys([*([latest] if (latest / POLICY).is_file() else []), *checkpoint.steps(where)])
    found = [step / POLICY for step in steps] + sorted(where.glob("*_final.safetensors"))
    if not found:
        raise InputError(
            f"{path}: holds no weights; expected the directory of a run, its checkpoints, or one checkpoint"
            f" with {POLICY}"
        )
    return [file.absolute() for file in found]


def run_root(path: Path) -> Path:
    """The run directory of these weights, or the folder of the file."""
    return run_of(path.parent.parent if path.name == POLICY else path.parent)


# --- reading ------------------------------------------------------------------------------------------------


def load(path: Path, *, trust: bool = False, plays: bool = True) -> tuple[Weights, list[str]]:
    """The first undamaged candidate, and notes for the user about the choice. `path` may be a name on the hub.
    Without `plays` the environment is not needed, and nothing of it is imported.
    """
    if str(path).startswith(hub.HUB):
        path = hub.fetch(str(path), (POLICY, PROVENANCE))
    files, note = candidates(path)
    lines = [note] if note else []
    problems: list[str] = []
    for file in files:
        try:
            weights = read(file, trust=trust, plays=plays)
            return weights, lines + [f"{problem}; {file} is used instead" for problem in problems]
        except Damaged as problem:
            problems.append(str(problem))
    raise InputError(problems[0])


def read(file: Path, *, trust: bool = False, plays: bool = True) -> Weights:
    """Raises Damaged if the file cannot be used, and InputError if the user has to decide."""
    data = _read_bytes(file)
    arrays = parse_arrays(data, str(file))
    metadata = metadata_of(data, str(file))
    if metadata.get("format") != FORMAT:
        found = (
            f"its format is {metadata['format']!r}" if "format" in metadata else "it does not say what it is"
        )
        raise Damaged(f"{file}: holds no policy of this program ({found}; expected {FORMAT!r})")
    try:
        settings = read_settings(file=None, flags={}, base=json.loads(metadata["settings"]))
        spec = _spec(json.loads(metadata["spec"]))
        env_steps = int(metadata["env_steps"])
        if not 0 <= env_steps < 1 << 62:
            raise ValueError("impossible steps")
        is_own = is_signed(metadata.get("signature", ""), metadata["settings"].encode())
        code = {} if is_own or trust else named_code(settings.changed("logging", callbacks=[]))
        plays = plays or not spec.spaces
        if not plays:
            code = {key: value for key, value in code.items() if key == "training.policy"}
        settings = settings if code else resolve_policy(checked(settings, has_env=plays), spec)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"{file}: its description cannot be read ({type(error).__name__})") from None
    except InputError as error:
        raise InputError(f"{file}: its settings do not fit this program: {error}") from None
    refuse(file, code)
    return Weights(file, settings, spec, env_steps, arrays)


def _read_bytes(file: Path) -> bytes:
    if file.name == POLICY and file.with_name(checkpoint.MANIFEST).is_file():
        return checkpoint.read_policy(file.parent, MAX_BYTES)
    data = read_regular(file, MAX_BYTES)
    if file.name == POLICY and file.with_name(PROVENANCE).is_file():
        _check_shared(file, data)
    return data


def _check_shared(file: Path, data: bytes) -> None:
    try:
        described = json.loads(read_regular(file.with_name(PROVENANCE), MAX_PROVENANCE))
        is_same = described["files"][POLICY]["sha256"] == hashlib.sha256(data).hexdigest()
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"{file.with_name(PROVENANCE)}: cannot be read ({type(error).__name__})") from None
    if not is_same:
        raise Damaged(f"{file}: was changed after it was shared (its checksum is in {PROVENANCE})")


def _spec(values: Any) -> EnvSpec:
    """Refuses shapes that no environment can have, before a network is made for them."""
    spec = EnvSpec.from_json(values)
    shape, action = spec.observation_shape, spec.action
    sizes = [*shape, *action.sizes, *(size for part in spec.parts for size in part.shape)]
    bounds = [*action.low, *action.high]
    num_bounds = 2 * action.sizes[0] if action.kind == "gaussian" else 0
    if not (
        len(shape) in (1, 3)
        and all(type(size) is int and 0 < size < 1 << 24 for size in sizes)
        and math.prod(shape) < 1 << 28
        and spec.observation_dtype in ("float32", "uint8")
        and action.kind in ("categorical", "gaussian", "bernoulli")
        and action.sizes
        and (action.kind == "categorical" or len(action.sizes) == 1)
        and sum(action.sizes) < 1 << 24
        and len(bounds) == num_bounds
        and all(type(bound) in (int, float) and bound == bound for bound in bounds)
        and all(type(part.offset) is int and part.offset >= 0 and part.end <= shape[0] for part in spec.parts)
        and all(len(part.shape) == (3 if part.is_image else 1) for part in spec.parts)
    ):
        raise ValueError("impossible shapes")
    if spec.spaces:
        observation_space, action_space = spaces_from_text(spec.spaces)
        reader = observation_reader(observation_space, "")
        if (*reader[:2], reader.parts) != (shape, spec.observation_dtype, spec.parts) or (
            action_writer(action_space, "").spec != action
        ):
            raise ValueError("impossible spaces")
    return spec


# --- checking -----------------------------------------------------------------------------------------------


def fill(weights: Weights, settings: Settings, spec: EnvSpec) -> Filled:
    """Copies the arrays into a flat vector for `spec`. Reports the first one that does not fit."""
    file, arrays = weights.path, weights.arrays
    if _interface(spec) != _interface(weights.spec):
        raise InputError(
            f"{file}: its policy reads {_words(weights.spec)}, {settings.env.id} has {_words(spec)}; give an"
            " --env that fits"
        )
    with torch.device("meta"):  # the size of the network is known before memory is spent on it
        policy = Policy(settings, spec)
    expected = {name: tuple(parameter.shape) for name, parameter in policy.named_parameters()}
    normalizer = {}
    if settings.training.normalize_observations:
        shapes = {"count": (), "mean": spec.vector_shape, "squares": spec.vector_shape}
        normalizer = {f"observations.{key}": shapes[key] for key in NORMALIZER}
    _compare(file, arrays, expected, np.float32)
    _compare(file, arrays, normalizer, np.float64)
    for name in arrays:
        if name not in expected and name not in normalizer:
            raise InputError(f"{file}: holds {name}, which its network does not have")
    flat = torch.zeros(num_flat(policy))
    for name, view in views(policy, flat).items():
        view.copy_(torch.from_numpy(arrays[name]))
    mean, scale = _normalizer(arrays, spec) if normalizer else (np.float32(0), np.float32(1))
    return Filled(flat.numpy(), np.asarray(mean), np.asarray(scale), sha256(policy, flat))


def initial_arrays(settings: Settings, spec: EnvSpec, *, trust: bool) -> dict[str, np.ndarray]:
    """Arrays of the state, by name, that a run with `training.init_from` starts with."""
    source = os.path.expanduser(str(settings.training.init_from))
    try:
        weights, _ = load(named_run(source), trust=trust, plays=False)
        filled = fill(weights, settings, spec)
    except InputError as error:
        raise InputError(f"training.init_from: {error}") from None
    statistics = {f"observations.{key}": weights.arrays.get(f"observations.{key}") for key in NORMALIZER}
    return {"parameters": filled.parameters} | {k: v for k, v in statistics.items() if v is not None}


def make_actor(settings: Settings, spec: EnvSpec, filled: Filled) -> Actor:
    """The saved policy with its frozen normalizer, ready to act."""
    arrays = filled.parameters, filled.observation_mean, filled.observation_scale
    actor = Actor(settings, spec, *map(torch.from_numpy, arrays))
    actor.refresh()
    return actor


def _interface(spec: EnvSpec) -> tuple:
    """The part of a specification that a network depends on."""
    return spec.observation_shape, spec.observation_dtype, spec.parts, spec.action.kind, spec.action.sizes


def _words(spec: EnvSpec) -> str:
    shape = " x ".join(map(str, spec.observation_shape))
    sizes = "+".join(map(str, spec.action.sizes))
    return f"{shape} {spec.observation_dtype} observations and {spec.action.kind} actions ({sizes})"


def _compare(
    file: Path, arrays: dict[str, np.ndarray], expected: dict[str, tuple[int, ...]], dtype: type
) -> None:
    for name, shape in expected.items():
        array = arrays.get(name)
        if array is None:
            raise InputError(f"{file}: has no {name}, which its network needs")
        if array.shape != shape or array.dtype != dtype:
            raise InputError(
                f"{file}: {name} is {array.dtype} of shape {array.shape}; its network needs {np.dtype(dtype)}"
                f" of shape {shape}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{file}: {name} holds a NaN or infinity; the policy cannot be used")


def _normalizer(arrays: dict[str, np.ndarray], spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale as the run publishes them."""
    count, mean, squares = (arrays[f"observations.{key}"] for key in NORMALIZER)
    if not count > 0:
        return np.zeros(spec.vector_shape, np.float32), np.ones(spec.vector_shape, np.float32)
    variance = squares / max(float(count), 1.0)
    return mean.astype(np.float32), (1 / np.sqrt(np.maximum(variance, 0) + EPSILON)).astype(np.float32)
