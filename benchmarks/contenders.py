"""The contenders of a benchmark: this checkout, other versions of it, and peers in environments of their
own that are made on demand.
"""

import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.processes import clean_environment, last_line, run
from benchmarks.works import LSTM, Work
from parallel_ppo.exits import InputError
from tools.same_bits import checkout

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"


class Unavailable(Exception):
    """A contender that cannot run here. The message is one line."""


class Measured(NamedTuple):
    """One run of a contender."""

    seconds: list[float]  # of each iteration, warm-up included
    peak_mb: float
    policy_sha256: str | None = None  # None: not reported


class Contender(Protocol):
    def measure(self, work: Work, *, iterations: int, cores: int, timeout: float) -> Measured: ...

    def versions(self) -> dict[str, str]: ...


class Ours(NamedTuple):
    """This project: some checkout, with settings of its own."""

    settings: tuple[str, ...] = ()  # KEY=VALUE
    project: Path = ROOT
    script: str = "train_parallel_timed.py"

    def measure(self, work: Work, *, iterations: int, cores: int, timeout: float) -> Measured:
        with tempfile.TemporaryDirectory(prefix="throughput-") as directory:
            command = [
                sys.executable, self.script, "--quiet", "--env", work.env, "--policy", work.policy,
                "--num-envs", str(work.num_envs), "--n-steps", str(work.num_steps),
                "--n-epochs", str(work.epochs), "--batch-size", str(work.batch_size),
                "--total-timesteps", str(work.steps * iterations),
                *(word for setting in (*work.settings, *self.settings) for word in ("--set", setting)),
                "--output-dir", f"{directory}/run",
            ]  # fmt: skip
            outcome = run(
                command, cwd=self.project, environment=clean_environment(), timeout=timeout, wanted_lines=None
            )
            if outcome.problem is not None:
                raise Unavailable(outcome.problem)
            lines = Path(f"{directory}/run/metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        # All that happens between two iterations counts.
        moments = [0.0, *(record["wall_time"] for record in records)]
        seconds = [after - before for before, after in itertools.pairwise(moments)]
        return Measured(seconds, outcome.peak_mb, records[-1]["policy_sha256"])

    def versions(self) -> dict[str, str]:
        return package_versions(sys.executable, "torch", "numpy")


class Peer(NamedTuple):
    environment: str
    adaptor: str
    variant: str
    package: str
    settings: tuple[str, ...] = ()  # of the works that it knows

    def measure(self, work: Work, *, iterations: int, cores: int, timeout: float) -> Measured:
        if work.settings != self.settings:
            raise Unavailable(f"is for works with {' '.join(self.settings) or 'no settings of ours'}")
        self.prepare()
        command = [
            str(self.python), self.adaptor,
            "--env", work.env.removeprefix("benchmarks.peers."), "--policy", work.policy,
            "--num-envs", str(work.num_envs), "--num-steps", str(work.num_steps),
            "--epochs", str(work.epochs), "--batch-size", str(work.batch_size),
            "--iterations", str(iterations), "--cores", str(cores), "--variant", self.variant,
        ]  # fmt: skip
        outcome = run(
            command, cwd=PEERS, environment=clean_environment(), timeout=timeout, wanted_lines=iterations
        )
        if outcome.problem is not None:
            raise Unavailable(outcome.problem)
        lines = [json.loads(line) for line in outcome.lines]
        if len(lines) < iterations:
            raise Unavailable(f"ended after {len(lines)} of {iterations} iterations")
        assert all(line["steps"] == work.steps for line in lines), "the adaptor does other work than stated"
        return Measured([line["seconds"] for line in lines], outcome.peak_mb)

    def versions(self) -> dict[str, str]:
        return package_versions(str(self.python), "torch", "numpy", self.package)

    @property
    def home(self) -> Path:
        return PEERS / "venvs" / self.environment

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def prepare(self) -> None:
        """Makes the environment where it is missing or was made from other requirements."""
        requirements = PEERS / f"{self.environment}.txt"
        mark, wanted = self.home / ".ready", hashlib.sha256(requirements.read_bytes()).hexdigest()
        if mark.exists() and mark.read_text() == wanted:
            return
        print(f"making an environment for {self.environment} (once, a few minutes) ...", flush=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(self.home)],
            [str(self.home / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise Unavailable(f"cannot be installed ({last_line(result.stderr)})")
        mark.write_text(wanted)


PEER_NAMES = {
    "sb3": Peer("sb3", "sb3.py", "", "stable-baselines3"),
    "sb3_channels_last": Peer("sb3", "sb3.py", "channels_last", "stable-baselines3"),
    "sb3_contrib": Peer("sb3_contrib", "sb3_recurrent.py", "", "sb3-contrib", LSTM),
    "sample_factory": Peer("sample_factory", "sample_factory_appo.py", "", "sample-factory"),
    "sample_factory_serial": Peer("sample_factory", "sample_factory_appo.py", "serial", "sample-factory"),
    "rllib": Peer("rllib", "rllib.py", "", "ray"),
}
FORMS = f"sequential, commit:REVISION, commit:FOLDER, ours:KEY=VALUE, {', '.join(PEER_NAMES)}"


def find(name: str, stack: contextlib.ExitStack) -> Contender:
    """The contender of this name; a commit is checked out for as long as `stack` is open."""
    kind, _, detail = name.partition(":")
    if name == "ours":
        return Ours()
    if name == "sequential":
        return Ours(script="train_timed.py")
    if name in PEER_NAMES:
        return PEER_NAMES[name]
    if kind == "ours" and "=" in detail:
        return Ours(tuple(detail.split("+")))
    if kind == "commit" and detail:
        if not (Path(detail) / "train_parallel_timed.py").is_file() and not is_commit(detail):
            raise InputError(f"--against {name}: expected a commit of this repository or a checkout's folder")
        return Ours(project=stack.enter_context(checkout(detail)))
    raise InputError(f"--against {name}: unknown contender; expected {FORMS}")


def is_commit(revision: str) -> bool:
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def package_versions(python: str, *packages: str) -> dict[str, str]:
    code = (
        "import sys, json; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    result = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=False)
    return json.loads(result.stdout) if result.returncode == 0 else {}
