"""Faults in what surrounds a run: terminals, homes, kernel caches, limits of the shell, links in downloads."""

import os
import pty
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_ppo.commands.train import train_sequential
from tests.conftest import ROOT, command, train_here
from tests.faults.test_broken_writing import small_disk
from tests.faults.training import is_identical

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
SHAPE = ["--num-envs", "4", "--n-steps", "8", "--batch-size", "32"]
CARTPOLE = ["--env", "CartPole-v1", *SHAPE]
TWO_WORKERS = ["--num-workers", "2", "--set", "env.slice_envs=2", "--set", "hardware.pinning=none"]
LINKS = ("config.yaml", "run.json", "summary.json", "metrics.jsonl", "episodes.jsonl", "evaluation.json",
         "play.gif", "faults.jsonl", "trace-1.json", ".lock", "checkpoints/latest", "logs/node-1.log")  # fmt: skip


def test_error_texts_are_escaped_on_a_terminal(tmp_path: Path) -> None:
    """An error and a folder that look like markup and escape sequences."""
    kwargs = ["--set", f"env.kwargs={{fault: rude, once: {tmp_path / 'once'}}}"]
    place = ["--total-timesteps", "64", "--output-dir", str(tmp_path / "[test]")]
    line = ["--env", "faulty_env:Faulty-v0", *SHAPE, *TWO_WORKERS, *kwargs, *place]
    variables = {"TERM": "xterm", "COLUMNS": "300", "PYTHONPATH": str(ROOT / "tests" / "workers")}
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train_parallel_timed.py"), *line],
        stdout=follower,
        stderr=follower,
        env=os.environ | variables,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        seen += data
    text = seen.decode(errors="replace")
    assert process.wait(60) == 0, text
    assert "[/data/x] not found [bold] \\x1b]0;owned\\x07" in text and "[test]" in text
    assert "\x1b]0;" not in text and "Traceback" not in text


def test_a_run_goes_on_in_another_home_with_its_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half, whole = (["--total-timesteps", str(steps)] for steps in (160, 320))
    run = tmp_path / "run"
    first, second = ({"XDG_CONFIG_HOME": str(tmp_path / name)} for name in ("first", "second"))
    monkeypatch.setenv("XDG_CONFIG_HOME", first["XDG_CONFIG_HOME"])
    train_here(run, *CARTPOLE, *half)
    train_here(tmp_path / "reference", *CARTPOLE, *whole)
    stranger = command("train_timed.py", "--resume", str(run), *whole, env=second)
    assert stranger.code == 2 and "PARALLEL_PPO_KEY_FILE" in stranger.err and stranger.err.count("\n") == 1
    monkeypatch.setenv("XDG_CONFIG_HOME", second["XDG_CONFIG_HOME"])
    monkeypatch.setenv("PARALLEL_PPO_KEY_FILE", str(tmp_path / "first" / "parallel_ppo" / "key"))
    train_here(run, "--resume", str(run), *whole)
    assert is_identical(run, tmp_path / "reference")
    monkeypatch.delenv("PARALLEL_PPO_KEY_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "first" / "parallel_ppo" / "key" / "x"))
    train_here(tmp_path / "homeless", *CARTPOLE, *half)
    assert "not signed" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.procgen
def test_damaged_kernel_caches_are_compiled_anew_or_done_without(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def kernels(place: Path) -> str:
        outcome = command(
            "train_timed.py", "--env", "coinrun", "--policy", "nature", "--print-config",
            env={"PARALLEL_PPO_KERNEL_CACHE": str(place)},
        )  # fmt: skip
        assert outcome.code == 0 and "Traceback" not in outcome.err, outcome.err
        return "native" if "kernels: native" in outcome.out else "torch"

    assert kernels(cache) == "native"
    (library,) = cache.glob("*.so")
    for data in (b"", library.read_bytes()[:5000], b"\x7fELF" + bytes(1000)):
        library.write_bytes(data)
        assert kernels(cache) == "native", data[:10]
    (tmp_path / "file").touch()
    assert kernels(tmp_path / "file") == "torch"
    with small_disk(tmp_path / "disk", 64), small_disk(tmp_path / "noexec", 4096, "noexec"):
        assert kernels(tmp_path / "disk" / "cache") == kernels(tmp_path / "noexec" / "cache") == "torch"


@pytest.mark.full
@pytest.mark.parametrize(
    ("limit", "kilobytes"),
    [(resource.RLIMIT_FSIZE, size) for size in (1, 64, 512, 8192)]
    + [(resource.RLIMIT_AS, megabytes * 1024) for megabytes in (256, 512, 768, 1024, 1536, 4096)],
)
def test_any_limit_ends_in_a_run_or_in_one_line(limit: int, kilobytes: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "train_parallel_timed.py"), *CARTPOLE, *TWO_WORKERS, "--quiet",
         "--total-timesteps", "64", "--output-dir", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(limit, (1024 * kilobytes,) * 2),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 2) and "Traceback" not in done.stdout, done.stdout
    assert done.returncode == 0 or done.stdout.count("\n") == 1, done.stdout


def test_links_in_a_downloaded_run_lead_nowhere(tmp_path: Path) -> None:
    """A run whose files, and temporary files, are links to a file of the user's."""
    victim, run, copy = tmp_path / "victim", tmp_path / "run", tmp_path / "copy"
    victim.write_bytes(b"precious")
    train_here(run, *CARTPOLE, "--total-timesteps", "64")
    for name in LINKS:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy, symlinks=True)
        for link in (copy / name, *(copy / f".{other}.tmp" for other in LINKS if "/" not in other)):
            link.unlink(missing_ok=True)
            link.symlink_to(victim)
        resume = ["--resume", str(copy), "--total-timesteps", "96", "--trace", "--quiet"]
        assert train_sequential(resume) in (0, 2, 5), name
        assert victim.read_bytes() == b"precious", name
    for name in ("evaluation.json", ".evaluation.json.tmp", "play.gif", ".play.tmp.gif"):
        (run / name).symlink_to(victim)
    for script, more in (("evaluate.py", []), ("play.py", ["--output", str(run / "play.gif")])):
        outcome = command(script, "--checkpoint", str(run), "--num-episodes", "1", *more)
        assert "Traceback" not in outcome.err
        assert victim.read_bytes() == b"precious", script
