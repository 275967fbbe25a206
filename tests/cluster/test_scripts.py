"""The ssh script with a real sshd, and the PBS script with a stub of pbsdsh: real nodes train, stop and fail."""

import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import CARTPOLE, QUIET, free_port, metrics, summary
from tests.conftest import ROOT, train
from tools.network import Network, why_not

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SSHD = Path("/usr/sbin/sshd")
GAME = [*CARTPOLE, *QUIET[:-2], "--set", "training.schedule_steps=1000000"]  # without --num-workers
LONG = [*GAME, "--total-timesteps", "1e9"]
SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile {folder}/pid
"""
SSH_CONFIG = """\
Host one two
  HostName 127.0.0.1
  Port {port}
Host lost
  HostName 127.0.0.1
  Port {closed}
Host *
  IdentityFile {folder}/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables with which `ssh one` and `ssh two` reach a real sshd here; nothing listens for `ssh lost`."""
    if not SSHD.exists() or getpass.getuser() != "root":
        pytest.skip("needs sshd (Debian: openssh-server) and root")
    for name in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    ports = {"port": free_port(), "closed": free_port(), "folder": tmp_path}
    (tmp_path / "sshd").write_text(SSHD_CONFIG.format(**ports))
    (tmp_path / "config").write_text(SSH_CONFIG.format(**ports))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    program.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen([str(SSHD), "-D", "-f", str(tmp_path / "sshd")], stderr=subprocess.DEVNULL)
    yield os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    daemon.terminate()
    daemon.wait()


def start_ssh(folder: Path, variables: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tools" / "launch" / "ssh.py"), "--hosts", str(folder / "hosts"),
               "--output-dir", str(folder / "run"), "--python", sys.executable, "--num-workers", "1",
               "--master-addr", "127.0.0.1", "--", *arguments]  # fmt: skip
    return subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def await_iterations(directory: Path, process: subprocess.Popen[str], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while len(metrics(directory)) < 5:
        assert time.monotonic() < until and process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def same_steps(folder: Path) -> str:
    """The hash of an undisturbed run of as many steps as the run in `folder`."""
    steps = str(summary(folder / "run")["env_steps"])
    outcome = train(folder / "alone", *GAME, "--total-timesteps", steps)
    return outcome.summary["policy_sha256"]


def test_ssh_stops_by_term_and_continues(ssh: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one\ntwo\n")
    process = start_ssh(tmp_path, ssh, *LONG)
    await_iterations(tmp_path / "run", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    until = time.monotonic() + 60
    while not (tmp_path / "run" / "summary.json").exists():  # the connection ends before the nodes have saved
        assert time.monotonic() < until, output
        time.sleep(0.1)
    time.sleep(2)  # the summary comes before the end of the process
    stopped = summary(tmp_path / "run")
    assert stopped["world_size"] == 2 and "\x1b" not in output
    (tmp_path / "hosts").write_text("two\n")
    more = str(stopped["env_steps"] + 1280)
    process = start_ssh(tmp_path, ssh, *LONG[:-1], more)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert summary(tmp_path / "run")["policy_sha256"] == same_steps(tmp_path)


def test_ssh_ends_when_a_host_cannot_be_reached(ssh: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one\nlost\n")
    process = start_ssh(tmp_path, ssh, *LONG, "--join-timeout", "5")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 6 and "missing: node 1" in output and "Connection refused" in output


def pbs_programs(folder: Path, hosts: list[str], address: str) -> dict[str, str]:
    """`pbsdsh` runs its command on every host; each host has its own name."""
    programs = {
        "pbsdsh": """\
            shift; code=0
            for host in $(sort -u "$PBS_NODEFILE"); do HERE=$host ip netns exec "$host" "$@" & pids+=($!); done
            for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
            exit "$code"
        """,
        "hostname": f'echo "${{HERE:-{hosts[0]}}}"',
        "getent": f"echo {address} STREAM",
    }
    (folder / "bin").mkdir()
    for name, body in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "nodes").write_text("".join(f"{host}\n" for host in reversed(hosts)))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "17.server"}


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_pbs_starts_a_node_on_each_host_and_term_saves(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "launch" / "pbs.py"), "--nodes", "2", "--cpus", "1",
               "--output-dir", str(tmp_path / "run"), "--python", sys.executable, "--dry-run", "--", *LONG]  # fmt: skip
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with Network(2) as network:
        variables = pbs_programs(tmp_path, network.hosts, network.addresses[0])
        job = subprocess.Popen(
            ["bash", "-c", script], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        await_iterations(tmp_path / "run", job)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 75, output
    assert summary(tmp_path / "run")["world_size"] == 2
    assert (tmp_path / "run" / ".cluster-secret").stat().st_mode & 0o77 == 0
    assert summary(tmp_path / "run")["policy_sha256"] == same_steps(tmp_path)
