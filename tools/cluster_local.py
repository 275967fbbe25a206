"""Several nodes on this machine: starts train_ppo_distributed.py once for each, on the loopback interface.

Shows the first node's terminal; each other node logs into <output-dir>/logs/node-<rank>.log. Ends with
the code of the first node that failed.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import Parser, number_from, run
from parallel_ppo.machine.descendants import die_with_parent

SCRIPT = Path(__file__).resolve().parent.parent / "train_ppo_distributed.py"
EXAMPLE = "tools/cluster_local.py --nodes 2 -- --env coinrun --duration 1m --num-workers 1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(arguments: list[str], nodes: int, port: int) -> list[subprocess.Popen[bytes]]:
    place = ["--nnodes", str(nodes), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments, *place, "--node-rank", str(rank)],
            preexec_fn=die_with_parent,
            stdout=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(nodes)
    ]


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    parser.add_argument(
        "--nodes", type=number_from(1, 4096), default=2, help="how many (default: %(default)s)"
    )
    parser.add_argument("--port", type=number_from(1, 65535), help="of node 0 (default: a free one)")
    parser.add_argument("rest", nargs="*", metavar="ARGUMENT", help="after --: for train_ppo_distributed.py")
    arguments = parser.parse_args()
    processes = start(arguments.rest, arguments.nodes, arguments.port or free_port())

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the nodes as well
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, forward)
    while any(process.poll() is None for process in processes):
        time.sleep(0.1)
    codes = [process.returncode for process in processes]
    failed = [code for code in codes if code != 0]
    if not failed:
        return 0
    print(
        "exit codes: " + ", ".join(f"node {rank} {code}" for rank, code in enumerate(codes)), file=sys.stderr
    )
    return failed[0] if failed[0] > 0 else 128 - failed[0]


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    run(main)
