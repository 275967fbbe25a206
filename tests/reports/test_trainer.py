import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.reports import trainer
from parallel_ppo.reports.trainer import TrainerFailed

ROOT = Path(__file__).resolve().parents[2]


def make_trainer(tmp_path, body, *arguments):
    script = tmp_path / "trainer.py"
    script.write_text("import json, os, signal, sys, time\n" + body)
    places = {"run_directory": tmp_path / "run", "output": tmp_path / "run.log"}
    return {"line": [sys.executable, str(script), *arguments], **places}


def test_the_output_is_kept(tmp_path):
    trainer.train(**make_trainer(tmp_path, "print(sys.argv[1:])", "--seed", "3"))
    assert "'--seed', '3'" in (tmp_path / "run.log").read_text()


def test_progress_is_read_from_the_last_whole_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"steps_global": 64, "wall_time": 2.0}\n{"steps_global": 1')
    assert trainer.last_progress(tmp_path) == (64, 2.0)


def test_a_failure_carries_the_code_and_the_last_line(tmp_path):
    with pytest.raises(TrainerFailed, match=r"exit code 3: numbers went bad \(see .*run\.log\)") as caught:
        trainer.train(**make_trainer(tmp_path, "print('numbers went bad'); sys.exit(3)"))
    assert caught.value.exit_code == 3


def test_the_output_does_not_follow_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run.log").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match=r"run\.log is a link"):
        trainer.train(**make_trainer(tmp_path, "print('more')"))
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("odd", ["pipe", "sparse", "list", "nothing"])
def test_an_odd_log_is_no_progress_and_no_hang(tmp_path, odd):
    log = tmp_path / "metrics.jsonl"
    if odd == "pipe":
        os.mkfifo(log)
    elif odd == "sparse":
        log.touch()
        os.truncate(log, 1 << 38)
    elif odd == "list":
        log.write_text("[1]\n")
    assert trainer.last_progress(tmp_path) == (0, 0.0)


def test_of_a_sparse_output_only_the_end_is_read(tmp_path):
    (tmp_path / "run.log").touch()
    os.truncate(tmp_path / "run.log", 1 << 38)
    with pytest.raises(TrainerFailed, match="exit code 3: numbers went bad"):
        trainer.train(**make_trainer(tmp_path, "print('\\nnumbers went bad'); sys.exit(3)"))


def test_one_interrupt_reaches_the_trainer_once_and_it_may_save(tmp_path):
    child = (
        "count = [0]\n"
        "def note(*_):\n    count[0] += 1\n"
        "signal.signal(signal.SIGINT, note)\n"
        "open('ready', 'w').close()\n"
        "while not count[0]: time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
        "json.dump(count[0], open('interrupts', 'w'))\n"
        "sys.exit(130)\n"
    )
    make_trainer(tmp_path, child)
    parent = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from parallel_ppo.arguments import run\n"
        "from parallel_ppo.reports import trainer\n"
        "run(lambda: trainer.train([sys.executable, 'trainer.py'], run_directory=Path('run'), output=Path('log')))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(tmp_path / "ready")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "interrupts").read_text()) == 1


def test_the_trainer_does_not_outlive_a_killed_parent(tmp_path):
    make_trainer(
        tmp_path, "open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'ready'); time.sleep(60)"
    )
    parent = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from parallel_ppo.reports import trainer\n"
        "trainer.train([sys.executable, 'trainer.py'], run_directory=Path('run'), output=Path('log'))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path)
    wait_for(tmp_path / "ready")
    child = int((tmp_path / "ready").read_text())
    process.kill()
    process.wait()
    for _ in range(200):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the trainer lived on")


def wait_for(path):
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    pytest.fail(f"{path} never came")
