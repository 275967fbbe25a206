"""The engine that started this node (torchrun, Open MPI or SLURM) gives its rank and the number of nodes."""

import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from parallel_ppo.exits import InputError

SCONTROL_SECONDS = 20.0
FIRST_PORT, NUM_PORTS = 10_000, 20_000  # below the ports that Linux gives to outgoing connections


class Engine(NamedTuple):
    name: str
    rank: int
    size: int
    run_id: str = ""  # tells two jobs of one engine apart


class Variables(NamedTuple):
    """Where an engine puts its numbers."""

    name: str
    rank: str
    size: str
    run_id: str


# The innermost first: a SLURM job may start torchrun or mpirun, which then decide.
ENGINES = (
    Variables("torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    Variables("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    Variables("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"),
)


def find_engine(environment: Mapping[str, str]) -> Engine | None:
    """None: this process was started by hand. SLURM's batch script is no node; only what `srun` starts is."""
    for engine in ENGINES:
        if engine.rank in environment and engine.size in environment:
            rank, size = (_number(name, environment[name]) for name in (engine.rank, engine.size))
            return Engine(engine.name, rank, size, environment.get(engine.run_id, ""))
    return None


def settings_from_engine(environment: Mapping[str, str]) -> dict[str, Any]:
    """Values of a layer between the file and the flags."""
    values: dict[str, Any] = {}
    engine = find_engine(environment)
    if engine is not None:
        values["cluster.nnodes"] = engine.size
    if engine is not None and engine.name == "SLURM" and engine.size > 1:
        values["cluster.master_port"] = FIRST_PORT + _number("SLURM_JOB_ID", engine.run_id) % NUM_PORTS
        if "MASTER_ADDR" not in environment:
            values["cluster.master_addr"] = first_slurm_node(environment)
    if "MASTER_ADDR" in environment:
        values["cluster.master_addr"] = environment["MASTER_ADDR"]
    if "MASTER_PORT" in environment:
        values["cluster.master_port"] = _number("MASTER_PORT", environment["MASTER_PORT"])
    return values


def place(environment: Mapping[str, str], size: int, rank: int | None) -> int:
    """This node's rank among `size`; --node-rank, where it is given, replaces the engine's numbers."""
    engine = find_engine(environment)
    if rank is None and engine is not None:
        if size != engine.size:
            raise InputError(
                f"--nnodes: {size} nodes, but {engine.name} started {engine.size}; leave --nnodes out"
            )
        rank = engine.rank
    if rank is None and size > 1:
        raise InputError(
            f"--node-rank: is missing; give each of the {size} nodes its own from 0 to {size - 1}, or start"
            " them with torchrun, srun or mpirun"
        )
    rank = rank or 0
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
    fields = dict(
        word.split("=", 1) for word in _scontrol("show", "node", names[0], "-o").split() if "=" in word
    )
    return fields.get("NodeAddr", names[0])


def _scontrol(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=SCONTROL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"SLURM's `scontrol` does not answer ({error}); give --master-addr") from None
    if answer.returncode:
        raise InputError(
            f"`scontrol {' '.join(arguments)}` failed ({answer.stderr.strip()}); give --master-addr"
        )
    return answer.stdout


def _number(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{variable}={text!r} in the environment: expected a number") from None
