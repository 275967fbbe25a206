"""A policy as a folder for others: weights, settings, hashes of every iteration, evaluation, film, card
and provenance.

`provenance.json` names every other file with its size and checksum. Nothing in the folder is ever executed.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import numpy as safetensors

from parallel_ppo.evaluation import filming
from parallel_ppo.evaluation.evaluating import make_report, play_on_workers
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy, load_policy
from parallel_ppo.evaluation.policy_files import FORMAT, PROVENANCE, run_root
from parallel_ppo.exits import InputError
from parallel_ppo.settings.learning import only_learning
from parallel_ppo.settings.schema import Settings
from parallel_ppo.sharing import card
from parallel_ppo.storage.files import Damaged, read_regular, write_atomically
from parallel_ppo.storage.json_lines import read_records
from parallel_ppo.training.checkpoint import MANIFEST, POLICY
from parallel_ppo.workers.playing import has_unseen_levels

SETTINGS, HASHES, EVALUATION, FILM, CARD = (
    "config.yaml",
    "hashes.txt",
    "evaluation.json",
    "replay.mp4",
    "README.md",
)
CHECKED = (POLICY, SETTINGS, HASHES)
NUM_EPISODES = 100
MAX_PROVENANCE, MAX_HASHES = 1 << 20, 1 << 28
SHA256 = re.compile("[0-9a-f]{64}")


class Source(NamedTuple):
    """A policy and the facts of its run."""

    policy: LoadedPolicy
    settings: Settings  # only those that decide what is learned
    root: Path
    run: dict[str, Any]
    hashes: list[str]  # after iteration 1, 2, ... up to the policy's own
    reproducible: bool


def read_source(path: Path, *, trust: bool = False) -> Source:
    """Raises if the run cannot be shared."""
    policy = load_policy(path, trust=trust, num_episodes=NUM_EPISODES)
    root, saved = run_root(policy.weights.path), policy.weights.settings
    run = _read_json(root / "run.json", 1 << 24)
    learned = only_learning(saved)
    iteration, remainder = divmod(policy.weights.env_steps, saved.sizes.steps_per_iteration)
    if iteration == 0 or remainder:
        raise InputError(f"{policy.weights.path}: was not trained yet; there is nothing to share")
    hashes = _hashes(root / "metrics.jsonl", iteration)
    if hashes[-1] != policy.filled.policy_sha256:
        raise InputError(
            f"{policy.weights.path}: is not the policy of iteration {iteration} in {root / 'metrics.jsonl'}"
        )
    return Source(policy, learned, root, run, hashes, _is_reproducible(policy, run))


def _hashes(metrics: Path, iteration: int) -> list[str]:
    found = {record.get("iteration"): record.get("policy_sha256") for record in read_records(metrics)}
    hashes = []
    for number in range(1, iteration + 1):
        hashes.append(str(found.get(number)))
        if not SHA256.fullmatch(hashes[-1]):
            raise InputError(
                f"{metrics}: has no policy_sha256 of iteration {number}, so this policy could not be checked"
            )
    return hashes


def _is_reproducible(policy: LoadedPolicy, run: dict[str, Any]) -> bool:
    """By the run's own word; a schedule that was changed on the way is not in the settings."""
    manifest = policy.weights.path.with_name(MANIFEST)
    counters = _read_json(manifest, MAX_PROVENANCE).get("counters", {}) if manifest.is_file() else {}
    changed = any(session.get("schedule_changes") for session in _sessions(run))
    training = policy.weights.settings.training
    is_repeatable = training.schedule_by != "time" and training.init_from is None
    return bool(counters.get("bit_exact")) and not changed and is_repeatable


def _sessions(run: dict[str, Any]) -> list[dict[str, Any]]:
    sessions = run.get("sessions")
    return [one for one in sessions if isinstance(one, dict)] if isinstance(sessions, list) else []


def _read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, max_bytes))
    except Damaged as problem:
        raise InputError(f"{problem}; expected the directory of a run") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not valid JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content


# --- writing ------------------------------------------------------------------------------------------------


def write(source: Source, folder: Path, *, repo: str, film: bool, quiet: bool) -> None:
    """An empty or new folder. The card comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; give a new folder")
    camera = filming.check_camera(source.policy, "train", grid=(1, 1)) if film else None
    level_sets = ["train", "test"] if has_unseen_levels(source.policy.settings.env) else ["train"]
    episodes = play_on_workers(source.policy, level_sets, "auto", quiet)
    evaluation = make_report(source.policy, POLICY, episodes)
    contents = {
        POLICY: _weights(source),
        SETTINGS: card.settings_yaml(source.settings).encode(),
        HASHES: "".join(f"{one}\n" for one in source.hashes).encode(),
        EVALUATION: (json.dumps(evaluation, indent=1, allow_nan=False) + "\n").encode(),
    }
    for name, data in contents.items():
        write_atomically(folder / name, data)
    if camera is not None:
        filming.record(camera, [folder / FILM], quiet=True)
        contents[FILM] = (folder / FILM).read_bytes()
    provenance = _provenance(source, contents)
    write_atomically(folder / PROVENANCE, (json.dumps(provenance, indent=1) + "\n").encode())
    text = card.render(repo, source.settings, provenance, evaluation, has_film=film)
    write_atomically(folder / CARD, text.encode())


def _weights(source: Source) -> bytes:
    """The same arrays, described by the learning settings only. They are not signed: everyone can read the signature,
    and put another module of the same name beside it.
    """
    weights = source.policy.weights
    metadata = {
        "format": FORMAT,
        "settings": json.dumps(source.settings.model_dump()),
        "spec": json.dumps(weights.spec.as_json()),
        "env_steps": str(weights.env_steps),
    }
    return safetensors.save(weights.arrays, metadata)


def _provenance(source: Source, contents: dict[str, bytes]) -> dict[str, Any]:
    run, weights = source.run, source.policy.weights
    return {
        "format": card.FOLDER_FORMAT,
        "policy_sha256": source.hashes[-1],
        "iteration": len(source.hashes),
        "env_steps": weights.env_steps,
        "seed": weights.settings.training.seed,
        "command": list(_command(run)),
        "version": run.get("version"),
        "git_commit": run.get("git_commit"),
        "reproducible": source.reproducible,
        "arithmetic": _arithmetic(run, len(source.hashes)),
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        },
    }


def _command(run: dict[str, Any]) -> Iterator[str]:
    """The command of the first session, without folders of the machine."""
    first = next((session.get("command") for session in _sessions(run)), None)
    for word in first if isinstance(first, list) else []:
        yield Path(str(word)).name if str(word).startswith("/") else str(word)


def _arithmetic(run: dict[str, Any], iteration: int) -> list[dict[str, str]]:
    """The arithmetic of each session that trained the policy, without repetitions."""
    found: list[dict[str, str]] = []
    for session in _sessions(run):
        one, first = session.get("arithmetic"), session.get("first_iteration", 0)
        if not (isinstance(first, int) and isinstance(one, dict)) or first >= iteration or one in found:
            continue
        found.append({str(name): str(value) for name, value in one.items()})
    return found


# --- reading ------------------------------------------------------------------------------------------------


class Shared(NamedTuple):
    provenance: dict[str, Any]
    hashes: list[str]


def read(folder: Path) -> Shared:
    """Checks everything but the policy, which `policy_files.read` checks."""
    path = folder / PROVENANCE
    if not path.is_file():
        raise InputError(f"{folder}: holds no {PROVENANCE}; expected a folder that `parallel-ppo push` wrote")
    provenance = _read_json(path, MAX_PROVENANCE)
    try:
        for name in (SETTINGS, HASHES):
            data, entry = read_regular(folder / name, MAX_HASHES), provenance["files"][name]
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise InputError(
                    f"{folder / name}: was changed after it was shared (its checksum is in {PROVENANCE})"
                )
        hashes = data.decode("ascii").split()
        fits = provenance["format"] == card.FOLDER_FORMAT and all(map(SHA256.fullmatch, hashes))
        if not (
            fits and len(hashes) == provenance["iteration"] and hashes[-1] == provenance["policy_sha256"]
        ):
            raise InputError(f"{folder}: {PROVENANCE} and {HASHES} contradict each other")
        kinds = provenance["arithmetic"]
        if type(provenance["reproducible"]) is not bool or not all(
            isinstance(value, str) for kind in kinds for value in kind.values()
        ):
            raise TypeError
    except Damaged as problem:
        raise InputError(str(problem)) from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(f"{path}: is not what `parallel-ppo push` writes ({type(error).__name__})") from None
    return Shared(provenance, hashes)
