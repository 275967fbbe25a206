"""--requeue asks SLURM after USR1 only, and is refused outside SLURM."""

import pytest

from parallel_ppo.commands.requeue import Requeue
from parallel_ppo.exits import InputError


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def answer(script):
        path = tmp_path / "scontrol"
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{script}\n')
        path.chmod(0o755)

    answer("exit 0")
    return answer


def test_outside_slurm_it_is_refused(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match="not a SLURM job"):
        Requeue(True)
    Requeue(False).ask_after("SIGUSR1")


def test_a_job_near_its_limit_is_requeued_a_cancelled_one_is_not(slurm, tmp_path, capsys):
    requeue = Requeue(True)
    for name in (None, "SIGTERM", "SIGINT", "SIGHUP"):
        requeue.ask_after(name)
    assert not (tmp_path / "asked").exists()
    requeue.ask_after("SIGUSR1")
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    assert "asked SLURM to start job 4711 again" in capsys.readouterr().err


def test_a_refusal_is_said(slurm, capsys):
    slurm("echo 'Invalid job id' >&2; exit 1")
    Requeue(True).ask_after("SIGUSR1")
    assert "`scontrol requeue 4711` failed: Invalid job id" in capsys.readouterr().err


def test_the_job_that_is_started_again_finds_its_run(slurm, tmp_path):
    requeue = Requeue(True)
    assert not requeue.should_continue(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert requeue.should_continue(tmp_path)
    assert not Requeue(False).should_continue(tmp_path)
