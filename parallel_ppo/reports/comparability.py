"""May these runs be compared, and did they learn the same bits?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallel_ppo.reports.curves import column_mean, cpu_percent
from parallel_ppo.reports.groups import Group, learning_settings
from parallel_ppo.reports.runs import Run

IDENTICAL = "identical"
DIFFERENT = "different"
UNKNOWN = "unknown"

CONTENDED = 0.8

WORDS = {
    "env.id": "other game",
    "training.policy": "other network",
    "training.n_epochs": "other number of epochs",
    "env.num_envs": "other number of environments",
    "training.batch_size": "other minibatch",
    "training.n_steps": "other rollout length",
}


@dataclass(frozen=True)
class Identity:
    """Whether `policy_sha256` agrees wherever both runs of a seed wrote it after equal steps."""

    verdict: str
    compared: int
    sentence: str


def identity(baseline: Group, other: Group) -> Identity:
    pairs = [(a, b) for a in baseline.runs for b in other.runs if a.seed is not None and a.seed == b.seed]
    if not pairs:
        return Identity(UNKNOWN, 0, "not known: no seed is in both")
    compared = 0
    for first, second in pairs:
        hashes = _by_steps(second)
        for steps, digest in _by_steps(first).items():
            if steps not in hashes:
                continue
            compared += 1
            if hashes[steps] != digest:
                sentence = (
                    f"no: seed {first.seed} differs from step {steps:,} on{_explanation(first, second)}"
                )
                return Identity(DIFFERENT, compared, sentence)
    if compared == 0:
        return Identity(UNKNOWN, 0, "not known: no parameters were recorded after equal steps")
    steps = max(set(_by_steps(pairs[-1][0])) & set(_by_steps(pairs[-1][1])), default=0)
    seeds = f" and {len(pairs)} seeds" if len(pairs) > 1 else ""
    return Identity(
        IDENTICAL,
        compared,
        f"yes: one policy_sha256 at all {compared} common iterations{seeds}, to step {steps:,}",
    )


def _explanation(first: Run, second: Run) -> str:
    """Equal bits are promised for equal settings on one machine and one version only."""
    reason = next(_differences(first, second), None)
    if reason is None:
        return ", although settings, machine and version agree: this breaks the contract"
    return f", as it may: {reason[0].split(' (')[0]}"


def _by_steps(run: Run) -> dict[int, str]:
    return {int(steps): digest for steps, digest in zip(run.steps, run.policy_sha256, strict=True) if digest}


def comparability_warnings(baseline: Group, other: Group) -> list[str]:
    """One line for each thing that makes the two groups different in more than their speed."""
    lines = []
    for name, mine, theirs in _differences(baseline.first, other.first):
        lines.append(f"{name}: {baseline.label} {mine}, {other.label} {theirs}")
    if sorted(map(str, (run.seed for run in baseline.runs))) != sorted(
        map(str, (run.seed for run in other.runs))
    ):
        mine, theirs = (", ".join(str(run.seed) for run in group.runs) for group in (baseline, other))
        lines.append(f"other seeds: {baseline.label} {mine}; {other.label} {theirs}")
    lines += [line for group in (baseline, other) for line in _mixed(group)]
    return lines


def same_work(baseline: Group, other: Group) -> bool:
    """Whether a step costs the same in both, so that their speeds may be divided."""
    mine, theirs = learning_settings(baseline.first), learning_settings(other.first)
    return all(mine.get(key) == theirs.get(key) for key in WORDS)


def busy_machine(group: Group) -> list[str]:
    """Runs that got much less CPU time than they were busy for shared the machine with something else."""
    lines = []
    for run in group.runs:
        # Further threads of a sequential run may have nothing to do.
        workers = 1 if run.kind == "sequential" else run.num_workers
        idle = column_mean([run], "idle_share")
        wanted = 100.0 * workers * (1.0 - (idle if idle == idle else 0.0))
        got = cpu_percent([run])
        if got < CONTENDED * wanted:
            lines.append(
                f"{run.path} got {got:.0f}% CPU while busy for {wanted:.0f}%: other programs used the machine, "
                "so its speed says little; run it again on an idle one"
            )
    return lines


def _differences(first: Run, second: Run) -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = learning_settings(first), learning_settings(second)
    ordered = [*WORDS, *sorted((mine.keys() | theirs.keys()) - WORDS.keys())]
    for key in ordered:
        if mine.get(key) != theirs.get(key):
            yield f"{WORDS.get(key, 'other setting')} ({key})", mine.get(key), theirs.get(key)
    if _threads(first) != _threads(second):
        name = "other arithmetic (hardware.num_threads; equal bits are promised with 1)"
        yield name, _threads(first), _threads(second)
    if first.machine.get("cpu_model") != second.machine.get("cpu_model"):
        yield (
            "other machine",
            first.machine.get("cpu_model", "unknown"),
            second.machine.get("cpu_model", "unknown"),
        )
    if first.num_cores != second.num_cores:
        yield "other number of cores", first.num_cores, second.num_cores
    for name, key in (("other version", "version"), ("other commit", "git_commit")):
        if first.info.get(key) != second.info.get(key):
            yield name, _short(first.info.get(key)), _short(second.info.get(key))


def _threads(run: Run) -> int:
    return run.num_threads if run.kind == "sequential" else 1


def _short(value: Any) -> str:
    """The start of a commit, and whether files differed from it."""
    if not value:
        return "unknown"
    commit, dash, state = str(value).partition("-")
    return commit[:10] + dash + state


def _mixed(group: Group) -> Iterator[str]:
    """A group whose seeds are not alike has no mean worth reporting."""
    for run in group.runs[1:]:
        if run.num_workers != group.first.num_workers:
            yield f"within {group.label}: {group.first.num_workers} and {run.num_workers} workers ({run.path})"
        for name, mine, theirs in _differences(group.first, run):
            yield f"within {group.label}, {name}: {group.first.path} {mine}, {run.path} {theirs}"
