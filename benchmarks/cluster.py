"""Measure what a minibatch's exchange between nodes costs, compared with gloo's plain all-reduce of the same
vector. With --iterations: how long the nodes of a real training (config/ppo_cpu_cluster.yaml) wait and
transfer, and how long their workers are idle.

Nodes use the loopback interface. With --rate each node is a host in a network namespace that sends at most
that many Mbit/s (needs root).
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, positive, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402
from parallel_ppo.settings.layers import load_settings  # noqa: E402
from tools.network import Network, why_not  # noqa: E402

EXAMPLE = "benchmarks/cluster.py --nodes 4 --rate 1000"
CONFIG = ROOT / "config" / "ppo_cpu_cluster.yaml"
PORT = 29517


# --- one node -----------------------------------------------------------------------------------------------


def node(arguments: argparse.Namespace) -> None:
    from parallel_ppo.machine.placement import set_thread_variables

    set_thread_variables()
    import numpy as np
    import torch
    import torch.distributed as distributed

    from parallel_ppo.cluster import gloo, nodes
    from parallel_ppo.machine.signals import Signals
    from parallel_ppo.policies.parameters import num_flat
    from parallel_ppo.policies.policy import Policy
    from parallel_ppo.training import planning
    from parallel_ppo.workers.memory import Memory

    flags = {"cluster.nnodes": arguments.nodes, "cluster.master_addr": arguments.address,
    "cluster.master_port": PORT,
             "training.policy": arguments.policy}  # fmt: skip
    settings = load_settings(file=CONFIG, flags=flags)
    place = nodes.Node(arguments.rank, arguments.nodes)
    plan = planning.make_plan(settings, kind="cluster", output=Path("unused"), node=place)
    joined = gloo.join(plan.settings, place, plan.machine, Signals(), lambda line: None)
    assert isinstance(joined, gloo.GlooCluster)
    memory = Memory(plan.settings, plan.spec, num_flat(Policy(plan.settings, plan.spec)))
    memory.gradient[:] = np.random.default_rng(arguments.rank).standard_normal(memory.gradient.size)
    vector = torch.from_numpy(memory.gradient.copy())
    times: dict[str, list[float]] = {"exchange": [], "transfer": [], "all_reduce": []}
    for _ in range(arguments.rounds + 2):  # interleaved; the first two warm up
        before, began = joined.exchange.transfer, time.monotonic()
        joined.sum_gradients(memory)
        times["exchange"].append(time.monotonic() - began)
        times["transfer"].append(joined.exchange.transfer - before)
        began = time.monotonic()
        distributed.all_reduce(vector)
        times["all_reduce"].append(time.monotonic() - began)
    exchange, repeats = joined.exchange, arguments.rounds + 2
    result: dict[str, Any] = {
        "nodes": arguments.nodes,
        "policy": arguments.policy,
        "parameters": memory.gradient.size,
        "bytes_sent_per_minibatch": round(exchange.bytes_sent / repeats),
        "messages_sent_per_minibatch": round(exchange.messages_sent / repeats),
        "rate_mbit": arguments.rate,
    }
    for name, values in times.items():
        result[f"{name}_ms_median"] = round(1000 * statistics.median(values[2:]), 2)
        result[f"{name}_ms_least"] = round(1000 * min(values[2:]), 2)
    if place.leads:
        print(json.dumps(result))
    joined.close()


# --- a training ---------------------------------------------------------------------------------------------


def training(arguments: argparse.Namespace, rank: int, address: str, directory: Path) -> list[str]:
    steps = load_settings(file=CONFIG, flags={}).sizes.steps_per_iteration * (arguments.iterations + 1)
    chosen = [word for setting in arguments.set for word in ("--set", setting)]
    return [sys.executable, str(ROOT / "train_ppo_distributed.py"), "--config", str(CONFIG), "--quiet",
            "--policy", arguments.policy, "--nnodes", str(arguments.nodes), "--node-rank", str(rank),
            "--master-addr", address, "--master-port", str(PORT), "--total-timesteps", str(steps),
            "--set", "logging.tensorboard=false", *chosen, "--output-dir", str(directory)]  # fmt: skip


def own_cores(rank: int, nodes: int) -> set[int]:
    """An equal part of this process's cores; all of them where there are fewer than nodes."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[rank * len(cores) // nodes : (rank + 1) * len(cores) // nodes]) or set(cores)


def report(arguments: argparse.Namespace, directory: Path) -> None:
    """Without the first iteration, which warms up."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()][1:]
    total = sum(record["t_iter"] for record in records)
    result = {"nodes": arguments.nodes, "policy": arguments.policy, "settings": arguments.set,
              "rate_mbit": arguments.rate}  # fmt: skip
    for name in ("t_iter", "t_sync_wait", "t_sync_transfer"):
        seconds = [round(record[name], 3) for record in records]
        result |= {name: seconds, f"{name}_percent": round(100 * sum(seconds) / total, 2)}
    for name in ("idle_collect", "idle_update"):
        result[name] = round(statistics.mean(record[name] for record in records), 3)
    print(json.dumps(result), flush=True)


def main() -> int:
    arguments = build_parser().parse_args()
    if arguments.rank is not None:
        node(arguments)
        return 0
    if arguments.rate is not None and (problem := why_not()):
        raise InputError(f"--rate: {problem}")
    with contextlib.ExitStack() as stack:
        network = None
        if arguments.rate is not None:
            network = stack.enter_context(Network(arguments.nodes, arguments.rate))
        if not arguments.iterations:
            return measure(arguments, network, exchange_command)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        code = measure(arguments, network, partial(training, arguments, directory=directory))
        if code == 0:
            report(arguments, directory)
        return code


def build_parser() -> Parser:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    add = parser.add_argument
    add("--nodes", type=positive, default=2, metavar="N", help="how many (default: %(default)s)")
    add("--policy", default="impala", choices=["impala", "nature"])
    add("--rounds", type=positive, default=20, metavar="N", help="default: %(default)s")
    add("--rate", type=float, metavar="MBIT", help="of each node's link, Mbit/s")
    add("--iterations", type=positive, metavar="N", help="train for N iterations, after one that warms up")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of that training")
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--address", default="127.0.0.1", help=argparse.SUPPRESS)
    return parser


def exchange_command(*, rank: int, address: str) -> list[str]:
    return [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--address", address]


def measure(arguments: argparse.Namespace, network: Network | None, command: Callable[..., list[str]]) -> int:
    """Starts all nodes, each on its own cores, and waits for them; a node that fails ends the others."""
    address, started = network.addresses[0] if network else "127.0.0.1", []
    for rank in range(arguments.nodes):
        host = ["ip", "netns", "exec", network.hosts[rank]] if network else []
        bind = partial(os.sched_setaffinity, 0, own_cores(rank, arguments.nodes))
        started.append(subprocess.Popen([*host, *command(rank=rank, address=address)], preexec_fn=bind))
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            for process in started:
                process.terminate()
        time.sleep(0.1)
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    run(main)
