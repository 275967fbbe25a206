"""The generated scripts: right for bash, right for shellcheck, and the ssh one really starts and ends its
nodes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TRAINING = ["--", "--env", "coinrun", "--num-envs", "512", "--batch-size", "16384"]
SCHEDULED = ["--nodes", "4", "--cpus", "32", "--output-dir", "runs/big one"]


def generate(launcher: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tools" / "launch" / f"{launcher}.py"), *arguments]  # it has its run bit
    return subprocess.run(command, capture_output=True, text=True)


def script(launcher: str, tmp_path: Path) -> str:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node-a\nuser@node-b  # the second\n\n")
    place = ["--hosts", str(hosts), "--output-dir", "runs/big one"] if launcher == "ssh" else SCHEDULED
    result = generate(launcher, *place, "--dry-run", *TRAINING)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("launcher", ["slurm", "pbs", "ssh"])
def test_bash_and_shellcheck_accept_the_script(launcher: str, tmp_path: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text(script(launcher, tmp_path))
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on this machine; `bash -n` passed")
    checked = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_slurm_asks_for_what_was_given(tmp_path: Path) -> None:
    text = script("slurm", tmp_path)
    for line in (
        "--nodes=4",
        "--cpus-per-task=32",
        "--ntasks-per-node=1",
        "--signal=B:USR1@120",
        "--requeue",
    ):
        assert f"#SBATCH {line}\n" in text
    assert "--num-workers 32" in text and "'runs/big one' --continue" in text


@pytest.mark.parametrize("launcher", ["slurm", "pbs"])
def test_the_shipped_examples_are_what_is_generated(launcher: str) -> None:
    """docs/cluster.md shows these scripts in full."""
    place = ["--nodes", "4", "--cpus", "32", "--output-dir", "runs/big", "--project", "/shared/parallel_ppo"]
    text = generate(launcher, *place, "--dry-run", *TRAINING).stdout
    assert text in (ROOT / "docs" / "cluster.md").read_text()


def test_wrong_input_is_told_in_one_line(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("-oProxyCommand=x\n")
    result = generate("ssh", "--hosts", str(hosts), "--output-dir", "x", "--dry-run")
    assert result.returncode == 2 and "is not a host" in result.stderr
    result = generate("ssh", "--hosts", str(tmp_path / "none"), "--output-dir", "x", "--dry-run")
    assert result.returncode == 2 and "cannot be read" in result.stderr
    assert generate("slurm", "--nodes", "0", "--cpus", "4", "--output-dir", "x").returncode == 2


def test_ssh_runs_a_node_on_each_host_and_passes_the_code_on(tmp_path: Path) -> None:
    """With an `ssh` that runs the command here, and a trainer that tells its rank."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "ssh"
    fake.write_text('#!/bin/bash\nexec bash -c "${@: -1}"\n')
    fake.chmod(0o755)
    (tmp_path / "train_ppo_distributed.py").write_text(
        "import sys\nprint(sys.argv[-1], file=open(sys.argv[-1], 'w'))\nsys.exit(75)\n"
    )
    (tmp_path / "hosts.txt").write_text("a\nb\n")
    command = [sys.executable, str(ROOT / "tools" / "launch" / "ssh.py"), "--hosts",
    str(tmp_path / "hosts.txt"),
               "--output-dir", "x", "--project", str(tmp_path), "--python", sys.executable]  # fmt: skip
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    result = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert result.returncode == 75, result.stderr
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("launcher", "flag"), [("slurm", "--name"), ("slurm", "--sbatch"), ("pbs", "--pbs"), ("pbs", "--time")]
)
def test_a_line_end_in_a_directive_is_refused(launcher: str, flag: str) -> None:
    result = generate(launcher, *SCHEDULED, f"{flag}=x\ntouch here", "--dry-run", *TRAINING)
    assert (result.returncode, result.stdout) == (2, "")
    assert flag in result.stderr and "expected one line" in result.stderr
