"""Who takes part: our trainers, and peers in environments of their own that are made on demand."""

import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import clean_environment, last_line, run
from benchmarks.works import Work

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"


class Unavailable(Exception):
    """A contender that cannot take part here, and why, in one line."""


class Measured(NamedTuple):
    """One run of a contender."""

    seconds: list[float]  # of each iteration, warm-up included
    peak_mb: float


class Ours(NamedTuple):
    script: str
    flags: tuple[str, ...]


class Peer(NamedTuple):
    environment: str
    adaptor: str
    variant: str
    packages: tuple[str, ...]


CONTENDERS: dict[str, Ours | Peer] = {
    "ours": Ours("train_parallel_timed.py", ()),
    "ours-torch": Ours("train_parallel_timed.py", ("--set", "training.kernels=torch")),
    "ours-rnd": Ours("train_parallel_timed.py", ("--curiosity", "rnd")),
    "ours-icm": Ours("train_parallel_timed.py", ("--curiosity", "icm")),
    "ours-ngu": Ours("train_parallel_timed.py", ("--curiosity", "ngu")),
    "ours-1-worker": Ours("train_parallel_timed.py", ("--num-workers", "1")),
    "ours-2-workers": Ours("train_parallel_timed.py", ("--num-workers", "2")),
    "ours-4-workers": Ours("train_parallel_timed.py", ("--num-workers", "4")),
    "sequential": Ours("train_timed.py", ("--num-threads", "auto")),
    "sequential-1-thread": Ours("train_timed.py", ("--num-threads", "1")),
    "sb3": Peer("sb3", "sb3.py", "", ("stable-baselines3",)),
    "sb3_channels_last": Peer("sb3", "sb3.py", "channels_last", ("stable-baselines3",)),
    "sample_factory": Peer("sample_factory", "sample_factory_appo.py", "", ("sample-factory",)),
    "sample_factory_serial": Peer("sample_factory", "sample_factory_appo.py", "serial", ("sample-factory",)),
    "rllib": Peer("rllib", "rllib.py", "", ("ray",)),
}


def measure(name: str, work: Work, *, iterations: int, cores: int, timeout: float) -> Measured:
    contender = CONTENDERS[name]
    if isinstance(contender, Ours):
        return measure_ours(contender, work, iterations, timeout)
    return _measure_peer(contender, work, iterations, cores, timeout)


def measure_ours(
    contender: Ours, work: Work, iterations: int, timeout: float, project: Path = ROOT
) -> Measured:
    """By this checkout or by another."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as directory:
        command = [
            sys.executable, contender.script, "--quiet", "--env", work.env, "--policy", work.policy,
            "--num-envs", str(work.num_envs), "--n-steps", str(work.num_steps),
            "--n-epochs", str(work.epochs), "--batch-size", str(work.batch_size),
            "--total-timesteps", str(work.steps * iterations),
            "--output-dir", f"{directory}/run", *contender.flags,
        ]  # fmt: skip
        outcome = run(
            command, cwd=project, environment=clean_environment(), timeout=timeout, wanted_lines=None
        )
        if outcome.problem is not None:
            raise Unavailable(outcome.problem)
        records = [
            json.loads(line) for line in Path(f"{directory}/run/metrics.jsonl").read_text().splitlines()
        ]
    # All that happens between two iterations counts.
    moments = [0.0, *(record["wall_time"] for record in records)]
    return Measured([after - before for before, after in itertools.pairwise(moments)], outcome.peak_mb)


def _measure_peer(peer: Peer, work: Work, iterations: int, cores: int, timeout: float) -> Measured:
    command = [
        str(python_of(peer.environment)), peer.adaptor,
        "--env", work.env.removeprefix("benchmarks.peers."), "--policy", work.policy,
        "--num-envs", str(work.num_envs), "--num-steps", str(work.num_steps), "--epochs", str(work.epochs),
        "--batch-size", str(work.batch_size), "--iterations", str(iterations), "--cores", str(cores),
        "--variant", peer.variant,
    ]  # fmt: skip
    outcome = run(
        command, cwd=PEERS, environment=clean_environment(), timeout=timeout, wanted_lines=iterations
    )
    if outcome.problem is not None:
        raise Unavailable(outcome.problem)
    lines = [json.loads(line) for line in outcome.lines]
    if len(lines) < iterations:
        raise Unavailable(f"ended after {len(lines)} of {iterations} iterations")
    assert all(line["steps"] == work.steps for line in lines), "an adaptor that does other work than stated"
    return Measured([line["seconds"] for line in lines], outcome.peak_mb)


# --- environments of the peers ------------------------------------------------------------------------------


def python_of(environment: str) -> Path:
    return PEERS / "venvs" / environment / "bin" / "python"


def prepare(name: str) -> None:
    """Makes a peer's environment where it is missing or was made from other requirements."""
    contender = CONTENDERS[name]
    if isinstance(contender, Ours):
        return
    home = PEERS / "venvs" / contender.environment
    requirements = PEERS / f"{contender.environment}.txt"
    mark, wanted = home / ".ready", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == wanted:
        return
    print(f"making an environment for {contender.environment} (once, a few minutes) ...", flush=True)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Unavailable(f"cannot be installed ({last_line(result.stderr)})")
    mark.write_text(wanted)


def versions(name: str) -> dict[str, str]:
    """Of what the contender is made of."""
    contender = CONTENDERS[name]
    packages = ("torch", "numpy", *(contender.packages if isinstance(contender, Peer) else ()))
    python = str(python_of(contender.environment)) if isinstance(contender, Peer) else sys.executable
    code = (
        "import sys, json; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    result = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=False)
    return json.loads(result.stdout) if result.returncode == 0 else {}
