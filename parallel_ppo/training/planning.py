"""Everything that is decided and checked before the first process starts. Needs no torch, so that bad input is
reported at once.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from parallel_ppo.cluster.nodes import ALONE, Node
from parallel_ppo.envs.contract import EnvSpec, ReplayCheck
from parallel_ppo.envs.families import check_replay, probe
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.machine.placement import Placement, address_space_error, plan_placement
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.printable import count
from parallel_ppo.records.trackers import check_installed
from parallel_ppo.settings.kinds import (
    ALGORITHM_KINDS,
    AUGMENTATION_KINDS,
    automatic,
    cannot_be_whitened,
    is_own,
    network_kind,
    that_read,
)
from parallel_ppo.settings.learning import changed_learning_setting, changed_schedule
from parallel_ppo.settings.named_code import find
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import largest_slice
from parallel_ppo.storage.run_directory import ForeignDirectory, RunDirectory
from parallel_ppo.training.origin import saved_settings
from parallel_ppo.training.portability import tied_to_machine
from parallel_ppo.training.worker_count import useful_workers

MANY_CORES, MANY_CORES_WORKERS = "config/ppo_many_cores.yaml", 64
LIBRARY_ADDRESSES = 600_000_000  # what torch and the other libraries map
# Ours as torch: docs/journal/2026-11-experiments.md
TIMES_AS_FAST = {"impala": 3, "impoola": 3, "nature": 2, "small_image": 2.5, "mlp": 1.3}


class Plan(NamedTuple):
    kind: str  # parallel | sequential | cluster
    settings: Settings
    spec: EnvSpec
    machine: Machine
    placement: Placement
    directory: RunDirectory
    resume: bool
    trust: bool
    node: Node
    inline: bool  # no worker processes: the work is too small for them, or the trainer is the sequential one
    trace: Path | None = None
    replay_check: ReplayCheck = ReplayCheck()
    schedule_changes: Mapping[str, tuple[Any, Any]] = MappingProxyType({})  # by key: before, now
    initial: Mapping[str, Any] = MappingProxyType({})  # arrays of the state that a new run starts with
    tied_to_machine: tuple[str, ...] = ()  # why other CPUs or libraries may learn other bits


def make_plan(
    settings: Settings,
    *,
    kind: str,
    output: Path | None = None,
    checkpoints: Path | None = None,
    resume: Path | None = None,
    trust: bool = False,
    trace: Path | None = None,
    node: Node = ALONE,
) -> Plan:
    check_addresses(LIBRARY_ADDRESSES)
    settings = settings.changed("cluster", nnodes=node.size)
    if resume is not None:
        settings = as_before(settings)
    if node.leads:
        check_installed(settings.logging.trackers)
    if settings.hardware.buffers == "file":
        _check_buffer_directory(Path(str(settings.hardware.buffer_directory)))
    spec = probe(settings)
    check_augmentation(settings, spec)
    settings = resolve_kernels(_freeze_schedules(resolve_policy(settings, spec)), spec)
    if resume is None:
        settings = _resolve_microbatch(settings, spec)
    replay_check = check_replay(settings)
    _check_whitening(settings, replay_check)
    settings = _resolve_env(settings, spec, replay_check)
    machine = read_machine()
    placement, inline = _place(settings, kind, machine, spec, replay_check.step_seconds)
    if kind != "sequential":
        _warn_of_shared_cpus(settings.parallel.num_workers, len(machine.cpus))
    settings = _resolve_threads(settings, kind, machine, placement)
    directory: RunDirectory
    changes: dict[str, tuple[Any, Any]] = {}
    if not node.leads:
        directory = ForeignDirectory(resume or output)
    elif resume is None:
        directory = RunDirectory.new(output, kind, checkpoints)
    else:
        if output is not None and output != resume:
            raise InputError(
                f"--output-dir {output}: a resumed run stays in {resume}; leave --output-dir out"
            )
        directory = RunDirectory.existing(resume)
        saved = as_before(saved_settings(resume, trust=trust))
        problem = changed_learning_setting(saved, settings)
        if problem is not None:
            raise InputError(problem)
        changes = changed_schedule(saved, settings)
    if trace is not None:
        check_trace(trace)
    return Plan(
        kind=kind,
        settings=settings,
        spec=spec,
        machine=machine,
        placement=placement,
        directory=directory,
        resume=resume is not None,
        trust=trust,
        node=node,
        inline=inline,
        trace=trace,
        replay_check=replay_check,
        schedule_changes=changes,
        tied_to_machine=tied_to_machine(settings, spec, replay_check.machine_functions),
    )


def as_before(settings: Settings) -> Settings:
    """Runs that were saved before these choices existed reused their environments, had no masks, had slices of
    one size for all networks, and cut the samples of every user's network into the same microbatches.
    """
    training = settings.training
    if is_own(training.policy) and training.lane_samples is None:
        microbatch = network_kind(training.policy).default_microbatch
        settings = settings.changed("training", lane_samples=microbatch)
    env = settings.env
    undecided = [key for key in ("fresh_objects", "action_masks") if getattr(env, key) == "auto"]
    settings = settings.changed("env", **dict.fromkeys(undecided, False))
    if env.slice_envs is not None or ALGORITHM_KINDS[settings.training.algorithm].in_turn:
        return settings
    return settings.changed("env", slice_envs=largest_slice(env.num_envs))


def _resolve_microbatch(settings: Settings, spec: EnvSpec) -> Settings:
    """A user's network for vectors learns from all of a slice's samples at once, as the MLP does."""
    training = settings.training
    if spec.image_shapes or not is_own(training.policy) or training.lane_samples is not None:
        return settings
    return settings.changed("training", lane_samples=settings.sizes.slice_samples)


def _check_whitening(settings: Settings, replay_check: ReplayCheck) -> None:
    if settings.curiosity.is_curious and replay_check.unchanged_steps:
        raise InputError(cannot_be_whitened(settings.env.id, "do not change", replay_check.unchanged_steps))


def _resolve_env(settings: Settings, spec: EnvSpec, replay_check: ReplayCheck) -> Settings:
    """Decides `fresh_objects`, `action_masks` and `slice_envs`."""
    fresh = settings.env.fresh_objects
    if fresh == "auto":
        fresh = bool(replay_check.differs_when_reused) and not replay_check.remembers
    if settings.env.action_masks is True and not spec.masks_actions:
        raise InputError("env.action_masks: is for Discrete and MultiDiscrete actions; remove it")
    in_turn = ALGORITHM_KINDS[settings.training.algorithm].in_turn
    slice_envs = settings.env.slice_envs if in_turn else settings.sizes.slice_envs
    return settings.changed(
        "env", fresh_objects=fresh, action_masks=spec.masks_actions, slice_envs=slice_envs
    )


def check_addresses(more_bytes: int) -> None:
    problem = address_space_error(more_bytes)
    if problem is not None:
        raise InputError(problem)


def _check_buffer_directory(directory: Path) -> None:
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        raise InputError(
            f"hardware.buffer_directory: {directory} is not a directory that can be written; make it first,"
            " or give another"
        )


def check_trace(wanted: Path) -> None:
    """`.` means the next free trace-N.json of the run directory."""
    if wanted == Path():
        return
    if wanted.exists():
        raise InputError(f"--trace {wanted}: exists already; give another name or remove it")
    parent = wanted.absolute().parent
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InputError(
            f"--trace {wanted}: {parent} is not a directory that can be written; give another place"
        )


def share_host(plan: Plan, index: int, count: int) -> Plan:
    """Nodes on one machine take disjoint cores; where there are too few of them, the kernel shares them
    out.
    """
    if count == 1:
        return plan
    machine, hardware = plan.machine, plan.settings.hardware
    physical = sorted({(core.package, core.core_id) for core in machine.cores})
    mine = set(physical[index * len(physical) // count : (index + 1) * len(physical) // count])
    quota = machine.cpu_quota / count if machine.cpu_quota is not None else None
    settings = plan.settings
    if len(physical) < count:
        settings = settings.changed("hardware", pinning="none")
        mine = set(physical[:1])
    kept = tuple(core for core in machine.cores if (core.package, core.core_id) in mine)
    if not isinstance(hardware.pinning, str):
        return plan
    machine = replace(machine, cores=kept, cpu_quota=quota)
    placement, _ = _place(settings, plan.kind, machine, plan.spec, plan.replay_check.step_seconds)
    return plan._replace(placement=placement, machine=machine)


def resolve_policy(settings: Settings, spec: EnvSpec) -> Settings:
    """Turns `policy: auto` into a network and checks that it fits the observations."""
    images = spec.image_shapes
    what = "images" if images else "vectors"
    name: Any = settings.training.policy
    if name == "auto":
        name = automatic(images)
    kind = network_kind(name)
    if is_own(name):
        find("training.policy", name)
    elif kind.reads != what:
        raise InputError(
            f"training.policy: {name!r} cannot read the {what} of {settings.env.id}; use {that_read(what)}"
        )
    if images and min(min(shape[:2]) for shape in images) < kind.smallest_image:
        raise InputError(
            f"training.policy: {name} needs images of at least {kind.smallest_image} x {kind.smallest_image},"
            f" {settings.env.id} has {', '.join(map(str, images))}; use auto or a resize wrapper"
        )
    if settings.training.width != 1 and not kind.has_width:
        raise InputError(f"training.width: is for impala and impoola, the network is {name}; remove it")
    if settings.training.activation != "tanh" and not spec.vector_shape:
        raise InputError(f"training.activation: is for MLPs, the network is {name}; remove it")
    if settings.training.initial_log_std and spec.action.kind != "gaussian":
        raise InputError(
            f"training.initial_log_std: is for continuous actions, those of {settings.env.id} are not; remove it"
        )
    if settings.training.normalize_observations and not spec.vector_shape:
        raise InputError(
            "training.normalize_observations: is for vector observations; images are scaled by 1/255"
        )
    return settings.changed("training", policy=name)


def check_augmentation(settings: Settings, spec: EnvSpec) -> None:
    name = settings.training.augmentation
    if name == "none":
        return
    if not spec.image_shapes:
        raise InputError(
            f"training.augmentation: {name!r} changes images, and {settings.env.id} gives none; remove it"
        )
    kind = AUGMENTATION_KINDS[name]
    for height, width, channels in spec.image_shapes:
        if kind.needs_colors and channels % 3:
            raise InputError(
                f"training.augmentation: {name!r} needs red, green and blue, and the images of"
                f" {settings.env.id} have {channels} channels; use crop or cutout"
            )
        if kind.needs_square and height != width:
            raise InputError(
                f"training.augmentation: {name!r} needs square images, and those of {settings.env.id} are"
                f" {height} x {width}; use crop or cutout"
            )


def resolve_kernels(settings: Settings, spec: EnvSpec) -> Settings:
    """Our own kernels where they fit and compile, torch elsewhere. They round differently, so the choice
    is saved with the run.
    """
    if settings.training.kernels == "torch":
        return settings
    training = settings.training
    reason: str | None = "the observation has several parts"
    if not spec.parts:
        reason = unusable(training.policy, spec.observation_shape, training.hidden_sizes, training.width)
    if reason is None:
        return settings.changed("training", kernels="native")
    if settings.training.kernels == "native":
        raise InputError(
            f"training.kernels: native cannot be used here ({' '.join(reason.split())[:200]}); use auto or"
            " torch"
        )
    if training.policy in TIMES_AS_FAST:
        print(
            "warning: torch computes the network; our own kernels are about"
            f" {TIMES_AS_FAST[training.policy]:g} times as fast: {' '.join(reason.split())[:300]}",
            file=sys.stderr,
        )
    return settings.changed("training", kernels="torch")


def _freeze_schedules(settings: Settings) -> Settings:
    """The horizon of a schedule is fixed at the first start, so that a resume moves only the stop."""
    training = settings.training
    scheduled = training.with_horizon
    for name in scheduled:
        if is_own(kind := getattr(training, f"{name}_schedule")):
            find(f"training.{name}_schedule", kind)
    if not scheduled:
        return settings
    if training.schedule_by == "time":
        hours = training.schedule_hours or training.duration
        if hours is None:
            raise InputError(
                "training.schedule_by: 'time' needs training.schedule_hours or a duration (--duration)"
            )
        return settings.changed("training", schedule_hours=hours)
    steps = training.schedule_steps or training.total_timesteps
    if steps is None:
        raise InputError(
            f"training.{scheduled[0]}_schedule: needs training.schedule_steps or --total-timesteps to know"
            " where it ends; or set training.schedule_by to time"
        )
    return settings.changed("training", schedule_steps=steps)


def _place(
    settings: Settings, kind: str, machine: Machine, spec: EnvSpec, step_seconds: float
) -> tuple[Placement, bool]:
    """Also decides whether there are worker processes at all."""
    workers = settings.parallel.num_workers if kind != "sequential" else 1
    sizes = settings.sizes
    try:
        placement = plan_placement(
            machine,
            num_workers=None if workers == "auto" else workers,
            pinning=settings.hardware.pinning if kind != "sequential" else "none",
            max_useful=max(sizes.num_slices, sizes.num_microbatches),
        )
        useful = None
        if kind == "parallel" and workers == "auto" and settings.cluster.nnodes == 1:
            useful = useful_workers(settings, spec, placement.num_workers, lambda: step_seconds)
        if useful is None or useful[0] >= placement.num_workers:
            if kind == "parallel" and workers == "auto":
                placement = _suggest_many_cores(settings, machine, placement)
            return placement, kind == "sequential"
        number, why = useful
        pinning = settings.hardware.pinning if number else "none"
        placement = plan_placement(machine, num_workers=max(1, number), pinning=pinning)
        return replace(placement, reasons=(f"{why}.", *placement.reasons[1:])), number == 0
    except ValueError as error:
        raise InputError(str(error)) from None


def _warn_of_shared_cpus(workers: int | str, cpus: int) -> None:
    if isinstance(workers, int) and workers > cpus:
        print(
            f"warning: parallel.num_workers: {workers} workers share {count(cpus, 'CPU')}, which is all that"
            " this process may use; give it more (SLURM: srun --cpus-per-task), or use fewer workers",
            file=sys.stderr,
        )


def _suggest_many_cores(settings: Settings, machine: Machine, placement: Placement) -> Placement:
    """Idle cores are reported; they never change what is learned."""
    training = settings.training
    cores = plan_placement(machine, num_workers=None, pinning=settings.hardware.pinning).num_workers
    is_for_images = training.algorithm == "ppo" and network_kind(training.policy).reads == "images"
    if cores <= placement.num_workers or not is_for_images:
        return placement
    first, *others = placement.reasons
    hint = (
        f"{first} This process may use {cores} cores: --config {MANY_CORES} feeds {MANY_CORES_WORKERS}"
        " workers (more environments and larger batches, which change what is learned)."
    )
    return replace(placement, reasons=(hint, *others))


def _resolve_threads(settings: Settings, kind: str, machine: Machine, placement: Placement) -> Settings:
    threads = settings.hardware.num_threads
    if kind != "sequential":
        if threads not in (1, "auto"):
            raise InputError(
                f"hardware.num_threads: {threads} is for the sequential trainer; workers have one thread"
                " each, set parallel.num_workers"
            )
        return settings.changed("hardware", num_threads=1)
    if threads == "auto":
        settings = settings.changed(
            "hardware", num_threads=plan_placement(machine, num_workers=None, pinning="none").num_workers
        )
    return settings
