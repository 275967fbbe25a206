"""The generated scripts: right for bash, right for shellcheck, and the ssh one really starts and ends its
nodes.
"""

import os
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT
from tools import cluster_ray

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
        "--signal=B:USR1@120",
        "--requeue",
    ):
        assert f"#SBATCH {line}\n" in text
    assert "srun --ntasks-per-node=1 --cpus-per-task=32" in text and "--num-workers 32" in text
    assert "output='runs/big one'" in text


def test_wrong_input_is_reported_in_one_line(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("-oProxyCommand=x\n")
    result = generate("ssh", "--hosts", str(hosts), "--output-dir", "x", "--dry-run")
    assert result.returncode == 2 and "is not a host" in result.stderr
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("none", "is missing"), ("pipe", "is not a regular file")):
        result = generate("ssh", "--hosts", str(tmp_path / name), "--output-dir", "x", "--dry-run")
        assert result.returncode == 2 and problem in result.stderr
    for wrong in (["--nodes", "0"], ["--nodes", "4-"], ["--nodes", "4", "--name", "a/b"]):
        result = generate("slurm", "--cpus", "4", "--output-dir", "x", "--dry-run", *wrong)
        assert (result.returncode, result.stdout) == (2, "") and wrong[-1] in result.stderr


def test_ssh_runs_a_node_on_each_host_and_passes_the_code_on(tmp_path: Path) -> None:
    """With an `ssh` that runs the command here, and a trainer that writes its rank."""
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


@pytest.mark.parametrize(("launcher", "flag"), [("slurm", "--sbatch"), ("pbs", "--pbs"), ("pbs", "--time")])
def test_a_line_end_in_a_directive_is_refused(launcher: str, flag: str) -> None:
    result = generate(launcher, *SCHEDULED, f"{flag}=x\ntouch here", "--dry-run", *TRAINING)
    assert (result.returncode, result.stdout) == (2, "")
    assert flag in result.stderr and "expected one line" in result.stderr


@pytest.mark.parametrize("code", [137, 255, 75])
def test_the_job_script_ends_when_its_step_does(code: int, tmp_path: Path) -> None:
    """A killed coordinator (137) and an unreachable host (255): bash remembers the code of an ended child."""
    fakes = {
        "srun": f'[ "$1" = --ntasks-per-node=1 ] && exit {code}',
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
        "pbsdsh": f"exit {code}",
        "ssh": f"exit {code}",
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "PBS_JOBID": "7.a",
                 "PBS_NODEFILE": "/dev/null"}  # fmt: skip
    for launcher in ("slurm", "pbs", "ssh"):
        text = script(launcher, tmp_path).replace(str(ROOT), str(tmp_path))
        result = subprocess.run(
            ["bash", "-c", text], env=os.environ | variables, capture_output=True, timeout=30
        )
        assert result.returncode == code, (launcher, result.stderr)
    assert not (tmp_path / "asked").exists()  # nothing was saved, nothing signaled: no reason to requeue


def test_a_lost_node_is_requeued_only_after_a_checkpoint(tmp_path: Path) -> None:
    step = f"{tmp_path}/runs/checkpoints/step_$$"
    fakes = {
        "srun": f'[ -e {tmp_path}/saves ] && mkdir -p "{step}"; exit 6',
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    place = ["--nodes", "2", "--cpus", "1", "--output-dir", f"{tmp_path}/runs", "--max-restarts", "3"]
    text = generate("slurm", *place, "--project", str(tmp_path), "--dry-run", *TRAINING).stdout
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    def asked(**more: str) -> bool:
        (tmp_path / "asked").unlink(missing_ok=True)
        subprocess.run(
            ["bash", "-c", text], env=os.environ | variables | more, capture_output=True, timeout=30
        )
        return (tmp_path / "asked").exists()

    assert not asked()
    (tmp_path / "saves").touch()
    assert asked()
    assert not asked(SLURM_RESTART_COUNT="3")


def test_ray_says_once_that_it_waits_for_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_ray, "POLL", 0)
    found = iter([["a"], ["a"], ["a", "b"]])
    launcher: Any = SimpleNamespace(
        arguments=SimpleNamespace(nodes=(2, 4), cpus=8), stopped=False, usable_nodes=lambda: next(found)
    )
    assert cluster_ray.Launcher.await_nodes(launcher) == ["a", "b"]
    assert capsys.readouterr().err == "waiting: 1 of 2 Ray nodes have 8 CPUs (--nodes, --cpus)\n"


def test_ray_refuses_a_range_without_nodes() -> None:
    assert (cluster_ray.node_range("4"), cluster_ray.node_range("1-4")) == ((4, 4), (1, 4))
    for text in ("4-1", "0", "a"):
        with pytest.raises(ArgumentTypeError):
            cluster_ray.node_range(text)
