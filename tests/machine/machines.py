"""Machines that are not at hand."""

from parallel_ppo.machine.resources import GIB, Core, Machine


def machine(num_cores: int, *, smt: bool = False, quota: float | None = None) -> Machine:
    """Equal cores on one node; CPUs are numbered as Linux usually does: first threads of all cores, then
    their siblings.
    """
    cores = [
        Core(
            cpu=core + thread * num_cores,
            core_id=core,
            package=0,
            numa_node=0,
            is_performance=True,
            smt_thread=thread,
        )
        for thread in range(1 + smt)
        for core in range(num_cores)
    ]
    return Machine(
        cores=tuple(cores),
        num_online=len(cores),
        cpu_quota=quota,
        cpu_model="made up",
        memory_bytes=4 * GIB * num_cores,
        memory_limit_bytes=4 * GIB * num_cores,
        max_descriptors=None,
    )
