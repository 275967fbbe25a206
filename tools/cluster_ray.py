#!/usr/bin/env python3
"""Train on the nodes of a Ray cluster: one actor per Ray node runs one node of the training.

After a lost node the run continues from its newest checkpoint with the nodes that Ray has then; it also
takes nodes that join. Ctrl-C or TERM saves and ends. Run it where `ray.init()` finds the cluster
(RAY_ADDRESS).
"""

import argparse
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, number_from, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402

SCRIPT = "train_ppo_distributed.py"
EXAMPLE = "tools/cluster_ray.py --nodes 1-4 --cpus 32 --output-dir runs/big -- --env coinrun --num-envs 512"
LOST, PREEMPTED, FINAL = 6, 75, (2, 3, 4, 5, 7)  # exit codes; after a final one another start would not help
POLL = 1.0


class Node:
    """Ray sends this class to the nodes, where the project need not be importable."""

    def address(self) -> tuple[str, int]:
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def train(self, command: list[str], project: str, variables: dict[str, str]) -> int:
        self.process = subprocess.Popen(command, cwd=project, env=os.environ | variables)
        return self.process.wait()

    def stop(self) -> None:
        self.process.terminate()


class Launcher:
    def __init__(self, arguments: argparse.Namespace) -> None:
        import ray

        self.ray, self.arguments, self.stopped = ray, arguments, False
        ray.init(logging_level="warning")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self.stop)

    def stop(self, *_: object) -> None:
        self.stopped = True

    def usable_nodes(self) -> list[str]:
        """Sorted by name."""
        found = [
            node["NodeID"]
            for node in self.ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self.arguments.cpus
        ]
        return sorted(found)[: self.arguments.nodes[1]]

    def await_nodes(self) -> list[str]:
        least, cpus = self.arguments.nodes[0], self.arguments.cpus
        reported = None
        while len(nodes := self.usable_nodes()) < least and not self.stopped:
            if len(nodes) != reported:
                reported = len(nodes)
                line = f"waiting: {reported} of {least} Ray nodes have {cpus} CPUs (--nodes, --cpus)"
                print(line, file=sys.stderr, flush=True)
            time.sleep(POLL)
        return nodes

    def train(self) -> int:
        for _ in range(self.arguments.max_restarts + 1):
            nodes = self.await_nodes()
            if self.stopped:
                return PREEMPTED
            codes = self.start(nodes)
            print(f"exit codes: {', '.join(map(str, codes))}", file=sys.stderr)
            if not any(codes):
                return 0
            if final := [code for code in codes if code in FINAL]:
                return final[0]
        return LOST

    def start(self, nodes: list[str]) -> list[int]:
        """Trains on these nodes until all have ended; their exit codes."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        remote = self.ray.remote(Node).options
        actors = [
            remote(num_cpus=self.arguments.cpus, max_concurrency=2, scheduling_strategy=On(node, soft=False)).remote()
            for node in nodes
        ]  # fmt: skip
        try:
            return self.run_on(actors, nodes)
        except self.ray.exceptions.RayError as error:  # a node was lost before it started
            print(f"a node was lost: {str(error).splitlines()[0]}", file=sys.stderr)
            return [LOST]
        finally:
            for actor in actors:
                self.ray.kill(actor)

    def run_on(self, actors: list[Any], nodes: list[str]) -> list[int]:
        arguments = self.arguments
        (address, port), *_ = self.ray.get([actor.address.remote() for actor in actors])  # all have started
        command = [arguments.python, SCRIPT, "--output-dir", arguments.output_dir, "--num-workers",
                   str(arguments.cpus), "--continue", *arguments.rest]  # fmt: skip
        variables = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(actors)),
                     "PARALLEL_PPO_CLUSTER_SECRET": secrets.token_hex(16)}  # fmt: skip
        running = [
            actor.train.remote(command, arguments.project, variables | {"RANK": str(rank)})
            for rank, actor in enumerate(actors)
        ]
        waiting = running
        while waiting:
            _, waiting = self.ray.wait(waiting, num_returns=len(waiting), timeout=POLL)
            if self.stopped or len(self.usable_nodes()) > len(nodes):
                actors[0].stop.remote()
        return [self.code_of(result) for result in running]

    def code_of(self, result: Any) -> int:
        try:
            return self.ray.get(result)
        except self.ray.exceptions.RayError:
            return LOST


def node_range(text: str) -> tuple[int, int]:
    """The fewest and the most nodes."""
    if not re.fullmatch(r"[1-9]\d{0,3}(-[1-9]\d{0,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number or a range such as 1-4")
    least, _, most = text.partition("-")
    if int(most or least) < int(least):
        raise argparse.ArgumentTypeError(f"{text!r}: the first number is larger than the second")
    return int(least), int(most or least)


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    add = parser.add_argument
    add("--nodes", type=node_range, required=True, metavar="N|MIN-MAX", help="Ray nodes to train on")
    add("--cpus", type=number_from(1, 1024), required=True, help="CPUs of each node")
    add("--output-dir", required=True, metavar="DIR", help="run directory, seen by all nodes")
    add("--project", default=str(ROOT), metavar="DIR", help="checkout on the nodes (default: %(default)s)")
    add("--python", default=sys.executable, help="interpreter on the nodes (default: %(default)s)")
    add("--max-restarts", type=number_from(0, 10_000), default=100, help="default: %(default)s")
    add("rest", nargs="*", metavar="ARGUMENT", help=f"after --: arguments of {SCRIPT}")
    arguments = parser.parse_args()
    try:
        return Launcher(arguments).train()
    except ImportError:
        raise InputError("ray is not installed; pip install 'parallel_ppo[ray]'") from None


if __name__ == "__main__":
    run(main)
