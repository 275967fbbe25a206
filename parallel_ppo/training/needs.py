"""The memory, disk and file descriptors that a run needs, compared with what this machine has."""

import shutil
from pathlib import Path

from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import descriptor_need_error, memory_need_error
from parallel_ppo.memory.shared import file_bytes, saved_bytes, touched_bytes
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training import checkpoint
from parallel_ppo.training.planning import Plan
from parallel_ppo.workers.memory import arrays_of

PROCESS_BYTES = 300_000_000  # roughly, of a worker, besides the shared memory
NETWORK_BYTES = 8  # of a worker, for each parameter: packed weights, and the largest layer's gradient
SNAPSHOT_BYTES = 24  # of the coordinator: parameters and moments at the start of this iteration and the next
DESCRIPTORS_PER_WORKER = 4


def disk_need_error(plan: Plan, num_parameters: int) -> str | None:
    """An error line if the disk has no room for the kept checkpoints and the one being written."""
    settings, arrays = plan.settings, arrays_of(plan.settings, plan.spec, num_parameters)
    need = saved_bytes(arrays) * (min(settings.logging.keep_checkpoints, 3) + 2)
    place = plan.directory.checkpoints
    while not place.exists():
        place = place.parent
    buffers = settings.hardware.buffer_directory
    if buffers is not None and Path(buffers).stat().st_dev == place.stat().st_dev:
        need += file_bytes(arrays, settings)
    kept = [file for step in checkpoint.steps(plan.directory.checkpoints) for file in step.glob("*")]
    to_be_pruned = sum(512 * file.lstat().st_blocks for file in kept)
    free = shutil.disk_usage(place).free + to_be_pruned
    if free >= need:
        return None
    return (
        f"{plan.directory.checkpoints}: the run's checkpoints need {need:,} bytes of disk but {free:,} are"
        " free: free some space, lower logging.keep_checkpoints, or give another --output-dir"
    )


def check_resources(plan: Plan, num_parameters: int) -> None:
    workers = 0 if plan.inline else plan.placement.num_workers
    shared = touched_bytes(arrays_of(plan.settings, plan.spec, num_parameters), plan.settings)
    per_parameter = SNAPSHOT_BYTES + max(1, workers) * NETWORK_BYTES
    need = shared + (workers + 1) * PROCESS_BYTES + num_parameters * per_parameter
    for problem in (
        memory_need_error(need, plan.machine, what_can_shrink(plan.settings)),
        descriptor_need_error(64 + DESCRIPTORS_PER_WORKER * workers, plan.machine),
        disk_need_error(plan, num_parameters),
    ):
        if problem is not None:
            raise InputError(problem)


def what_can_shrink(settings: Settings) -> str:
    """The advice for a run that does not fit into memory."""
    is_episodic = settings.curiosity.kind == "ngu"
    return "fewer environments, steps or workers" + (
        ", a smaller curiosity.ngu_memory" if is_episodic else ""
    )
