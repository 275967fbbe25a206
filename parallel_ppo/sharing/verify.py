"""Train a shared policy again and compare the hash of every iteration. Only settings that decide what is
learned are taken from the folder.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

from parallel_ppo.evaluation.policy_files import fill
from parallel_ppo.evaluation.policy_files import load as load_weights
from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.machine.signals import Signals
from parallel_ppo.records.display import make_display
from parallel_ppo.settings.layers import read_settings
from parallel_ppo.settings.learning import first_difference, learning_values, only_learning
from parallel_ppo.settings.schema import Settings
from parallel_ppo.sharing.folder import SETTINGS, Shared, read
from parallel_ppo.storage.json_lines import read_records
from parallel_ppo.training import session
from parallel_ppo.training.arithmetic import arithmetic, differences
from parallel_ppo.training.checkpoint import POLICY
from parallel_ppo.training.planning import as_before, make_plan
from parallel_ppo.workers.fork_server import ForkServer

DEFAULT_ITERATIONS = 10
SELDOM = 1e9  # seconds between checkpoints


class Verdict(NamedTuple):
    code: ExitCode
    text: str


class Claim(NamedTuple):
    """The contents of a folder that passed every check without training."""

    shared: Shared
    settings: Settings
    observation_shape: tuple[int, ...]
    iterations: int


def read_claim(folder: Path, iterations: int | None, *, trust: bool) -> Claim:
    shared = read(folder)
    weights, _ = load_weights(folder / POLICY, trust=trust)
    if fill(weights, weights.settings, weights.spec).policy_sha256 != shared.hashes[-1]:
        raise InputError(
            f"{folder / POLICY}: is not the policy that hashes.txt names after its last iteration"
        )
    key = first_difference(
        learning_values(read_settings(file=folder / SETTINGS, flags={}).model_dump()),
        learning_values(weights.settings.model_dump()),
    )
    if key is not None:
        raise InputError(f"{folder / SETTINGS}: {key} is not what the policy was learned with")
    chosen = iterations or min(DEFAULT_ITERATIONS, len(shared.hashes))
    if chosen > len(shared.hashes):
        raise InputError(
            f"--iterations {chosen}: the policy was trained for {len(shared.hashes)}; give at most that many"
        )
    return Claim(shared, _learned(weights.settings, chosen), weights.spec.observation_shape, chosen)


def _learned(saved: Settings, iterations: int) -> Settings:
    """The learning settings, with a budget of `iterations`."""
    settings = only_learning(as_before(saved))
    steps = iterations * settings.sizes.steps_per_iteration
    logging = {"tensorboard": False, "checkpoint_interval": SELDOM, "keep_checkpoints": 1}
    return settings.changed("training", total_timesteps=steps).changed("logging", **logging)


def verify(claim: Claim, signals: Signals) -> Verdict:
    shared, settings = claim.shared, claim.settings
    if not shared.provenance["reproducible"]:
        return _not_comparable("the run is marked as not reproducible")
    if settings.training.kernels == "native":
        training = settings.training
        reason = unusable(training.policy, claim.observation_shape, training.hidden_sizes, training.width)
        if reason is not None:
            return _not_comparable(
                f"it was trained with native kernels, which do not run here ({reason[:200]})"
            )
    with tempfile.TemporaryDirectory(prefix="parallel-ppo-verify-") as place:
        found, here = train_again(settings, Path(place) / "run", signals)
    return compare(claim, found, here)


def train_again(settings: Settings, root: Path, signals: Signals) -> tuple[list[str], dict[str, str]]:
    """The hashes after each iteration, and what computed them."""
    kind = "parallel" if settings.hardware.num_threads == 1 else "sequential"
    plan = make_plan(settings, kind=kind, output=root)
    fork_server = None if plan.inline else ForkServer(plan.settings, plan.spec)
    try:
        code = session.train(plan, make_display(quiet=True), fork_server, signals)
    finally:
        if fork_server is not None:
            fork_server.close()
    if code != ExitCode.DONE:
        raise KeyboardInterrupt  # a signal: half a training compares nothing
    hashes = [record["policy_sha256"] for record in read_records(root / "metrics.jsonl")]
    return hashes, arithmetic(plan.settings, plan.machine.cpu_model, portable=not plan.tied_to_machine)


def compare(claim: Claim, found: list[str], here: dict[str, str]) -> Verdict:
    """`here`: the arithmetic that computed `found`."""
    shared, count = claim.shared, claim.iterations
    kinds = shared.provenance["arithmetic"]
    is_portable = here.get("portable") == "true" and all(kind.get("portable") == "true" for kind in kinds)
    elsewhere = [line for kind in kinds for line in differences(kind, here)]
    if found == shared.hashes[:count]:
        whole = "; this is the policy itself" if count == len(shared.hashes) else ""
        also = f"; also with {', '.join(elsewhere)}" if elsewhere else ""
        return Verdict(
            ExitCode.DONE, f"the same: {count} of {count} iterations have the same hash{whole}{also}"
        )
    pairs = enumerate(zip(found, shared.hashes[:count], strict=False), 1)
    first = next((number for number, (mine, theirs) in pairs if mine != theirs), len(found) + 1)
    if elsewhere or not any(kinds):
        why = ", ".join(elsewhere) or "the folder does not name the CPU and libraries of the training"
        return _not_comparable(
            f"the hashes differ from iteration {first} on, which may be because of this: {why}"
        )
    return Verdict(
        ExitCode.DIFFERENT,
        f"different: from iteration {first} on the hashes differ, "
        + (
            "which no CPU causes: the run is portable"
            if is_portable
            else "on the same CPU model and library versions"
        ),
    )


def _not_comparable(why: str) -> Verdict:
    return Verdict(ExitCode.NOT_COMPARABLE, f"not comparable: {why}")
