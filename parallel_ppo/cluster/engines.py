"""The engine that started this node (torchrun, Open MPI or SLURM) gives its rank and the number of nodes."""

import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from parallel_ppo.exits import InputError

SCONTROL_SECONDS = 20.0
FIRST_PORT, NUM_PORTS = 10_000, 20_000  # below the ports that Linux gives to outgoing connections
# The variables of rank, size and run. The innermost engine first: a SLURM job may start torchrun or mpirun.
# Ray's launcher sets torchrun's variables.
ENGINES = {
    "torchrun": ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"),
}


class Engine(NamedTuple):
    name: str
    rank: int
    size: int
    run_id: str  # differs between two jobs of one engine; may be empty


def find_engine(environment: Mapping[str, str]) -> Engine | None:
    """None: this process was started by hand. SLURM's batch script is no node; only what `srun` starts is."""
    for name, (rank, size, run_id) in ENGINES.items():
        if rank in environment and size in environment:
            numbers = _number(environment, rank), _number(environment, size)
            return Engine(name, *numbers, environment.get(run_id, ""))
    return None


def settings_from_engine(environment: Mapping[str, str]) -> dict[str, Any]:
    """Values of a layer between the file and the flags."""
    values: dict[str, Any] = {}
    engine = find_engine(environment)
    if engine is not None:
        values["cluster.nnodes"] = engine.size
    if engine is not None and engine.name == "SLURM" and engine.size > 1:
        values["cluster.master_port"] = FIRST_PORT + _number(environment, "SLURM_JOB_ID") % NUM_PORTS
        if "MASTER_ADDR" not in environment:
            values["cluster.master_addr"] = first_slurm_node(environment)
    if "MASTER_ADDR" in environment:
        values["cluster.master_addr"] = environment["MASTER_ADDR"]
    if "MASTER_PORT" in environment:
        values["cluster.master_port"] = _number(environment, "MASTER_PORT")
    return values


def rank_among(size: int, given: int | None, environment: Mapping[str, str]) -> int:
    """This node's rank; --node-rank, if given, replaces the engine's numbers."""
    engine = find_engine(environment)
    if given is None and engine is not None:
        if size != engine.size:
            raise InputError(
                f"--nnodes: {size} nodes, but {engine.name} started {engine.size}; leave --nnodes out"
            )
        given = engine.rank
    if given is None and size > 1:
        raise InputError(
            f"--node-rank: is missing; give each of the {size} nodes its own from 0 to {size - 1}, or start"
            " them with torchrun, srun or mpirun"
        )
    rank = given or 0
    if not 0 <= rank < size:
        raise InputError(
            f"--node-rank: {rank} is not one of the {size} nodes (0 to {size - 1}); see --nnodes"
        )
    return rank


def first_slurm_node(environment: Mapping[str, str]) -> str:
    """The address that SLURM itself uses; a host may have others that lead nowhere."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    names = _scontrol("show", "hostnames", nodes).split()
    if not names:
        raise InputError(f"SLURM_JOB_NODELIST={nodes!r} names no host; give --master-addr")
    fields = _scontrol("show", "node", names[0], "-o").split()
    addresses = [field.removeprefix("NodeAddr=") for field in fields if field.startswith("NodeAddr=")]
    return addresses[0] if addresses else names[0]


def _scontrol(*arguments: str) -> str:
    command = ["scontrol", *arguments]
    try:
        return subprocess.check_output(command, stderr=subprocess.STDOUT, text=True, timeout=SCONTROL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(getattr(error, "output", None) or error).strip()
        raise InputError(f"`{' '.join(command)}` failed ({problem}); give --master-addr") from None


def _number(environment: Mapping[str, str], variable: str) -> int:
    try:
        return int(environment[variable])
    except ValueError:
        raise InputError(
            f"{variable}={environment[variable]!r} in the environment: expected a number"
        ) from None
