"""Groups of runs compared: speed, memory, time to a return, equal bits, and whether they may be compared.

The first group is the baseline; every other one is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_ppo.reports import curves, statistics
from parallel_ppo.reports.groups import Group, algorithm, learning_settings, short_env
from parallel_ppo.reports.runs import Run, one_line
from parallel_ppo.reports.statistics import Estimate

IDENTICAL, DIFFERENT, UNKNOWN, NOT_COMPARED = "identical", "different", "unknown", "not compared"
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
class GroupResult:
    """The measurements of one group."""

    label: str
    directories: list[str]
    kind: str
    seeds: list[int | None]
    env: str
    algorithm: str
    policy: str
    n_epochs: float
    workers: int
    threads: int
    machine: str
    in_progress: bool
    iterations: int
    steps: int
    wall_time: float
    throughput: Estimate
    collect_fps: float
    update_share: float
    final_return: Estimate
    final_episodes: int  # behind it, of the run with the fewest
    peak_rss_mb: float
    cpu_percent: float
    seconds_per_1000_steps: dict[str, float]
    seconds_to_return: dict[str, float]


@dataclass(frozen=True)
class Identity:
    """Whether `policy_sha256` agrees wherever both runs of a seed recorded it after equal steps."""

    verdict: str
    compared: int
    sentence: str


@dataclass(frozen=True)
class PairResult:
    """One group against the baseline."""

    label: str
    baseline: str
    speedup: Estimate
    efficiency: Estimate
    identity: Identity
    same_algorithm: bool
    void: str  # why the speeds cannot be compared; empty if they can


@dataclass(frozen=True)
class EqualEffort:
    """Returns of all groups at the end of the shortest of them."""

    steps: int
    return_at_steps: dict[str, float]
    time: float  # seconds
    return_at_time: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    groups: list[GroupResult]
    pairs: list[PairResult]
    equal_effort: EqualEffort
    thresholds: list[float]
    warnings: list[str]
    notes: list[str]

    @property
    def has_other_algorithms(self) -> bool:
        return not all(pair.same_algorithm for pair in self.pairs)

    def title(self, result: GroupResult) -> str:
        """The label, with the algorithm if the algorithms differ."""
        is_enough = not self.has_other_algorithms or result.label == result.algorithm
        return result.label if is_enough else f"{result.label} ({result.algorithm})"


def compare(groups: Sequence[Group], *, thresholds: Sequence[float] | None = None) -> Comparison:
    assert len(groups) >= 2, "a comparison needs a baseline and another group"
    baseline, *others = groups
    chosen = list(thresholds) if thresholds else default_thresholds(groups)
    pairs = [compare_pair(baseline, group) for group in others]
    warnings = [
        line
        for group, pair in zip(others, pairs, strict=True)
        for line in unlike_groups(baseline, group, proven=pair.identity.verdict == IDENTICAL)
    ]
    warnings += [line for group in groups for line in [*unlike_seeds(group), *busy_machine(group)]]
    notes = [note for group in groups for run in group.runs for note in run.notes]
    notes += [line for group in others for line in settings_of_algorithms(baseline, group)]
    return Comparison(
        groups=[describe(group, chosen) for group in groups],
        pairs=pairs,
        equal_effort=equal_effort(groups),
        thresholds=chosen,
        warnings=list(dict.fromkeys(warnings)),
        notes=list(dict.fromkeys(notes)),
    )


def equal_effort(groups: Sequence[Group]) -> EqualEffort:
    runs = [run for group in groups for run in group.runs]
    steps, time = min(int(run.steps[-1]) for run in runs), min(float(run.wall_time[-1]) for run in runs)
    at_steps = {group.label: _mean_return(group, lambda run: run.steps <= steps) for group in groups}
    at_time = {group.label: _mean_return(group, lambda run: run.wall_time <= time) for group in groups}
    return EqualEffort(steps, at_steps, time, at_time)


# --- one group ----------------------------------------------------------------------------------------------


def describe(group: Group, thresholds: Sequence[float]) -> GroupResult:
    runs, first = group.runs, group.first
    cost = curves.phase_cost(runs)
    total = sum(cost.values())
    return GroupResult(
        label=group.label,
        directories=[run.name for run in runs],
        kind=first.kind,
        seeds=[run.seed for run in runs],
        env=short_env(first.env_id),
        algorithm=algorithm(first),
        policy=first.word("training.policy"),
        n_epochs=first.number("training.n_epochs"),
        workers=first.num_workers,
        threads=first.num_threads,
        machine=first.cpu_model,
        in_progress=any(run.in_progress for run in runs),
        iterations=max(len(run) for run in runs),
        steps=int(max(run.steps[-1] for run in runs)),
        wall_time=float(np.mean([run.wall_time[-1] for run in runs])),
        throughput=statistics.throughput([curves.timing(run) for run in runs]),
        collect_fps=curves.column_mean(runs, "rollout_fps"),
        update_share=cost["learn"] / total if total > 0 else float("nan"),
        final_return=final_return(group),
        final_episodes=min(curves.num_final_episodes(run) for run in runs),
        peak_rss_mb=curves.peak_memory_mb(runs),
        cpu_percent=curves.cpu_percent(runs),
        seconds_per_1000_steps=cost,
        seconds_to_return={f"{threshold:g}": seconds_to_return(group, threshold) for threshold in thresholds},
    )


def final_return(group: Group) -> Estimate:
    """Mean of the last episodes: over seeds if there are several, over episodes otherwise."""
    if len(group.runs) == 1:
        return statistics.bootstrap(curves.final_returns(group.first))
    means = [returns.mean() for run in group.runs if len(returns := curves.final_returns(run))]
    return statistics.over_seeds(means)


def seconds_to_return(group: Group, threshold: float) -> float:
    """Mean over the seeds; NaN unless all of them reach it."""
    reached = ((run.wall_time, curves.return_curve(run)) for run in group.runs)
    return float(np.mean([statistics.time_to_return(*each, threshold) for each in reached]))


def default_thresholds(groups: Sequence[Group]) -> list[float]:
    """A quarter, half and three quarters of the way from the first return to the best that all reached."""
    known = [curves.return_curve(run) for group in groups for run in group.runs]
    known = [curve[np.isfinite(curve)] for curve in known]
    if any(len(curve) == 0 for curve in known):
        return []
    start = max(float(curve[0]) for curve in known)
    best = min(float(curve.max()) for curve in known)
    if best - start <= 1e-6 * max(1.0, abs(best)):
        return []
    return sorted({float(f"{start + share * (best - start):.3g}") for share in (0.25, 0.5, 0.75)})


# --- a pair -------------------------------------------------------------------------------------------------


def compare_pair(baseline: Group, other: Group) -> PairResult:
    ratio = statistics.speedup(*([curves.timing(run) for run in group.runs] for group in (baseline, other)))
    per_core = cores_used(baseline) / cores_used(other)
    return PairResult(
        label=other.label,
        baseline=baseline.label,
        speedup=ratio,
        efficiency=Estimate(ratio.value * per_core, ratio.low * per_core, ratio.high * per_core),
        identity=identity(baseline, other),
        same_algorithm=_same_algorithm(baseline, other),
        void=why_void(baseline, other),
    )


def why_void(baseline: Group, other: Group) -> str:
    """The first reason that makes a ratio of the two speeds meaningless."""
    mine, theirs = learning_settings(baseline.first), learning_settings(other.first)
    for key, what in WORK.items():
        if mine.get(key) != theirs.get(key):
            return f"they did different work ({what})"
    if (baseline.first.cpu_model, baseline.first.num_cores) != (other.first.cpu_model, other.first.num_cores):
        return "they ran on different machines"
    busy = [group.label for group in (baseline, other) if busy_machine(group)]
    return f"other programs used the machine during {' and '.join(busy)}" if busy else ""


def cores_used(group: Group) -> int:
    """Workers of a parallel run, threads of a sequential one."""
    return group.first.num_threads if group.first.kind == "sequential" else group.first.num_workers


def _mean_return(group: Group, until: Callable[[Run], np.ndarray]) -> float:
    values = []
    for run in group.runs:
        curve = curves.return_curve(run)
        known = curve[until(run) & np.isfinite(curve)]
        values.append(known[-1] if known.size else np.nan)
    return float(np.mean(values))


def identity(baseline: Group, other: Group) -> Identity:
    if not _same_algorithm(baseline, other):
        return Identity(NOT_COMPARED, 0, "not compared: the algorithms differ")
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
    sentence = f"yes: one policy_sha256 at all {compared} common iterations{seeds}, to step {last:,}"
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


def unlike_groups(baseline: Group, other: Group, *, proven: bool) -> Iterator[str]:
    """All differences besides the speed.

    If equal hashes prove that they learned the same, only differences that affect the speed are left.
    """
    same_algorithm = _same_algorithm(baseline, other)
    for name, mine, theirs in differences(baseline.first, other.first, learning=not proven):
        if same_algorithm or not _is_of_algorithm(name):
            yield f"{name}: {baseline.label} {mine}, {other.label} {theirs}"
    mine, theirs = (sorted(str(run.seed) for run in group.runs) for group in (baseline, other))
    if mine != theirs:
        yield f"other seeds: {baseline.label} {', '.join(mine)}; {other.label} {', '.join(theirs)}"


def settings_of_algorithms(baseline: Group, other: Group) -> Iterator[str]:
    """Different algorithms need different settings: a note, not a warning."""
    if _same_algorithm(baseline, other):
        return
    names = [name for name, _, _ in differences(baseline.first, other.first) if _is_of_algorithm(name)]
    keys = ", ".join(name.partition("(")[2].rstrip(")") for name in names)
    yield f"{baseline.label} and {other.label} differ in their algorithm and its settings: {keys}"


def _same_algorithm(baseline: Group, other: Group) -> bool:
    return baseline.first.word("training.algorithm", "ppo") == other.first.word("training.algorithm", "ppo")


def _is_of_algorithm(difference: str) -> bool:
    is_training = "(training." in difference and "(training.policy)" not in difference
    return is_training or "(env.num_envs)" in difference


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


def differences(first: Run, second: Run, *, learning: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of every difference: learning settings first, then the machine."""
    if learning:
        mine, theirs = learning_settings(first), learning_settings(second)
        others = (mine.keys() | theirs.keys()) - {*WORK, "hardware.num_threads"}
        for key in [*WORK, *sorted(others)]:
            if mine.get(key) != theirs.get(key):
                one, two = (one_line(str(settings.get(key))) for settings in (mine, theirs))
                yield f"{WORK.get(key, 'other setting')} ({key})", one, two
        threads = [run.num_threads if run.kind == "sequential" else 1 for run in (first, second)]
        if threads[0] != threads[1]:
            yield (
                "other arithmetic (hardware.num_threads; equal bits are promised with 1)",
                threads[0],
                threads[1],
            )
    facts: list[tuple[str, Any, Any]] = [
        ("machine", first.cpu_model, second.cpu_model),
        ("number of cores", first.num_cores, second.num_cores),
    ]
    if learning:
        facts += [
            (name, _short(first.info.get(key)), _short(second.info.get(key)))
            for name, key in (("version", "version"), ("commit", "git_commit"))
        ]
    for name, first_fact, second_fact in facts:
        if first_fact != second_fact:
            yield f"other {name}", first_fact or "unknown", second_fact or "unknown"


def _short(value: Any) -> str:
    """The start of a commit, and whether files differed from it."""
    commit, dash, state = one_line(str(value or "unknown")).partition("-")
    return commit[:10] + dash + state
