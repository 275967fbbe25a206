"""Groups of runs compared: may their speeds be compared, and did they learn the same?

The first group is the baseline. Every other group is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_ppo.printable import one_line
from parallel_ppo.reports import curves, statistics
from parallel_ppo.reports.groups import Group, learning_settings
from parallel_ppo.reports.runs import Run
from parallel_ppo.reports.statistics import Estimate

IDENTICAL, DIFFERENT, UNKNOWN = "identical", "different", "unknown"
CONTENDED = 0.8

# A step costs the same only if these agree.
WORK = {
    "training.algorithm": "other algorithm",
    "env.id": "other game",
    "training.policy": "other network",
    "training.n_epochs": "other number of epochs",
    "env.num_envs": "other number of environments",
    "training.batch_size": "other minibatch",
    "training.n_steps": "other rollout length",
    "curiosity.kind": "other curiosity",
}


@dataclass(frozen=True)
class Identity:
    """Whether `policy_sha256` agrees wherever both runs of a seed recorded it after equal steps."""

    verdict: str
    compared: int
    sentence: str


@dataclass(frozen=True)
class Pair:
    """One group against the baseline."""

    group: Group
    baseline: Group
    speedup: Estimate
    efficiency: Estimate
    identity: Identity
    void: str  # why the speeds cannot be compared; empty if they can


@dataclass(frozen=True)
class Comparison:
    groups: Sequence[Group]
    pairs: list[Pair]
    warnings: list[str]
    notes: list[str]


def compare(groups: Sequence[Group]) -> Comparison:
    assert len(groups) >= 2, "a comparison needs a baseline and another group"
    pairs = [compare_pair(groups[0], group) for group in groups[1:]]
    warnings = [line for pair in pairs for line in unlike_groups(pair)]
    warnings += [line for group in groups for line in [*unlike_seeds(group), *busy_machine(group)]]
    notes = [note for group in groups for run in group.runs for note in run.notes]
    return Comparison(
        groups=groups,
        pairs=pairs,
        warnings=list(dict.fromkeys(warnings)),
        notes=list(dict.fromkeys(notes)),
    )


# --- returns ------------------------------------------------------------------------------------------------


def final_return(group: Group) -> Estimate:
    """Mean of the last episodes: over seeds if there are several, over episodes otherwise."""
    if len(group.runs) == 1:
        return statistics.bootstrap(curves.final_returns(group.first))
    means = [returns.mean() for run in group.runs if len(returns := curves.final_returns(run))]
    return statistics.over_seeds(means)


# --- a pair -------------------------------------------------------------------------------------------------


def compare_pair(baseline: Group, other: Group) -> Pair:
    ratio = statistics.speedup(*([curves.timing(run) for run in group.runs] for group in (baseline, other)))
    per_core = baseline.num_cores / other.num_cores
    return Pair(
        group=other,
        baseline=baseline,
        speedup=ratio,
        efficiency=Estimate(ratio.value * per_core, ratio.low * per_core, ratio.high * per_core),
        identity=identity(baseline, other),
        void=why_void(baseline, other),
    )


def why_void(baseline: Group, other: Group) -> str:
    """The first reason that makes a ratio of the two speeds meaningless."""
    mine, theirs = learning_settings(baseline.first), learning_settings(other.first)
    for key, what in WORK.items():
        if mine.get(key) != theirs.get(key):
            return f"they did different work ({what})"
    if next(machine_differences(baseline.first, other.first), None):
        return "they ran on different machines"
    busy = [group.label for group in (baseline, other) if busy_machine(group)]
    return f"other programs used the machine during {' and '.join(busy)}" if busy else ""


def identity(baseline: Group, other: Group) -> Identity:
    pairs = [(a, b) for a in baseline.runs for b in other.runs if a.seed is not None and a.seed == b.seed]
    if not pairs:
        return Identity(UNKNOWN, 0, "unknown: no seed is in both")
    compared, last = 0, 0
    for first, second in pairs:
        mine, theirs = _by_steps(first), _by_steps(second)
        for steps in (steps for steps in mine if steps in theirs):
            compared, last = compared + 1, max(last, steps)
            if mine[steps] != theirs[steps]:
                sentence = f"no: seed {first.seed} differs from step {steps:,} on"
                return Identity(DIFFERENT, compared, sentence + _explanation(first, second))
    if compared == 0:
        return Identity(UNKNOWN, 0, "unknown: no parameters were recorded after equal steps")
    seeds = f" and {len(pairs)} seeds" if len(pairs) > 1 else ""
    sentence = f"yes: one policy_sha256 at all {compared:,} common iterations{seeds}, to step {last:,}"
    return Identity(IDENTICAL, compared, sentence)


def _explanation(first: Run, second: Run) -> str:
    """Equal bits are promised for equal settings on one machine and one version only."""
    reason = next(differences(first, second), None)
    if reason is None:
        return ", although settings, machine and version agree: this breaks the contract"
    return f", as expected: {reason[0].split(' (')[0]}"


def _by_steps(run: Run) -> dict[int, str]:
    return {int(steps): digest for steps, digest in zip(run.steps, run.policy_sha256, strict=True) if digest}


# --- may they be compared? ----------------------------------------------------------------------------------


def unlike_groups(pair: Pair) -> Iterator[str]:
    """All differences besides the speed. If the hashes are equal, only those that affect the speed."""
    one, two = pair.baseline, pair.group
    found = machine_differences if pair.identity.verdict == IDENTICAL else differences
    for name, mine, theirs in found(one.first, two.first):
        yield f"{name}: {one.label} {mine}, {two.label} {theirs}"
    mine, theirs = (sorted(str(run.seed) for run in group.runs) for group in (one, two))
    if mine != theirs:
        yield f"other seeds: {one.label} {', '.join(mine)}; {two.label} {', '.join(theirs)}"


def unlike_seeds(group: Group) -> Iterator[str]:
    """The runs of a group should differ in their seed only."""
    first = group.first
    for run in group.runs[1:]:
        if run.num_workers != first.num_workers:
            yield f"within {group.label}: {first.num_workers} and {run.num_workers} workers ({run.name})"
        for name, mine, theirs in differences(first, run):
            yield f"within {group.label}, {name}: {first.name} {mine}, {run.name} {theirs}"


def busy_machine(group: Group) -> list[str]:
    """Runs that got much less CPU time than they were busy for shared the machine with something else."""
    lines = []
    for run in group.runs:
        # Further threads of a sequential run may have nothing to do.
        workers = 1 if run.kind == "sequential" else run.num_workers
        idle = curves.column_mean([run], "idle_share")
        wanted = 100.0 * workers * (1.0 - (idle if np.isfinite(idle) else 0.0))
        got = curves.cpu_percent([run])
        if got < CONTENDED * wanted:
            lines.append(
                f"{run.name} got {got:.0f}% CPU but needed {wanted:.0f}%: other programs used the machine; "
                "measure again on an idle one"
            )
    return lines


Difference = tuple[str, Any, Any]  # name and both values


def differences(first: Run, second: Run) -> Iterator[Difference]:
    """Settings first, then the machine, the version and the commit."""
    mine, theirs = learning_settings(first), learning_settings(second)
    others = (mine.keys() | theirs.keys()) - {*WORK, "hardware.num_threads"}
    for key in [*WORK, *sorted(others)]:
        if mine.get(key) != theirs.get(key):
            one, two = (one_line(str(settings.get(key))) for settings in (mine, theirs))
            yield f"{WORK.get(key, 'other setting')} ({key})", one, two
    threads = [run.num_threads if run.kind == "sequential" else 1 for run in (first, second)]
    if threads[0] != threads[1]:
        name = "other arithmetic (hardware.num_threads; equal bits are promised with 1)"
        yield name, threads[0], threads[1]
    yield from machine_differences(first, second)
    for name, key in (("version", "version"), ("commit", "git_commit")):
        one, two = _short(first.info.get(key)), _short(second.info.get(key))
        if one != two:
            yield f"other {name}", one, two


def machine_differences(first: Run, second: Run) -> Iterator[Difference]:
    if first.cpu_model != second.cpu_model:
        yield "other machine", first.cpu_model, second.cpu_model
    if first.num_cores != second.num_cores:
        yield "other number of cores", first.num_cores or "unknown", second.num_cores or "unknown"


def _short(value: Any) -> str:
    """The start of a commit, and whether files differed from it."""
    commit, dash, state = one_line(str(value or "unknown")).partition("-")
    return commit[:10] + dash + state
