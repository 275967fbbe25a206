"""Trackers follow a run from outside: every iteration once, whatever ends or fails."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.records import tracker_process
from parallel_ppo.records.tracker_process import Following, without_secrets
from parallel_ppo.records.trackers import check_installed
from tests.conftest import command

SMALL = ["--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "8", "--batch-size", "64", "--seed", "3"]
FAKE = """
import json, os, time
class Run:
    def __init__(self, name):
        self.path = os.environ["FAKE_TRACKIO"]
        known = [json.loads(line) for line in open(self.path)] if os.path.exists(self.path) else []
        self._next_step = known[-1][1] + 1 if known else 0
        self.name = name
    def log(self, values, step):
        with open(self.path, "a") as file:
            file.write(json.dumps([self.name, step, values["iteration"], values["policy_sha256"]]) + "\\n")
    def finish(self):
        time.sleep(1)
        open(self.path + "-finished", "w").close()
def init(project, name, **_):
    if "FAKE_FAILURE" in os.environ:
        raise ConnectionError("no route to https://me:hunter2@example.org\\nat all")
    return Run(name)
"""


class Service:
    """A tracker that keeps its records, and fails a given number of times."""

    kept: list[int] = []  # noqa: RUF012
    failures = 0
    remembers = True

    def __init__(self, run_id: str, root: Path, description: dict[str, Any]) -> None:
        self.last = Service.kept[-1] if Service.kept and Service.remembers else 0
        assert description["training.seed"] == 7

    def send(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            if Service.failures and len(Service.kept) == 2:
                Service.failures -= 1
                raise ConnectionError("gone")
            Service.kept.append(record["steps_global"])

    def close(self, is_finished: bool) -> None:
        Service.finished = is_finished


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "config.yaml").write_text("training:\n  seed: 7\n")
    (tmp_path / "run.json").write_text(json.dumps({"kind": "parallel"}))
    monkeypatch.setattr(tracker_process, "SERVICES", {"trackio": Service})
    monkeypatch.setattr(tracker_process, "RETRY", 0.01)
    monkeypatch.setattr(Service, "kept", [])
    monkeypatch.setattr(Service, "failures", 0)
    return tmp_path


def write(run: Path, *iterations: int, torn: str = "") -> None:
    lines = [json.dumps({"iteration": k, "steps_global": 64 * k}) + "\n" for k in iterations]
    (run / "metrics.jsonl").write_text("".join(lines) + torn)


def follow(run: Path) -> bool:
    """Of a run that is over."""
    ours, theirs = os.pipe()
    os.close(theirs)
    with open(ours, "rb") as pipe:
        return Following("trackio", run, pipe).follow()


def test_a_resumed_run_sends_every_iteration_once(run: Path) -> None:
    write(run, 1, 2, 3, torn='{"iteration": 4, "steps')
    assert follow(run)
    assert Service.kept == [64, 128, 192] and not Service.finished
    write(run, 1, 2, 3, 4, 5)  # killed, resumed from iteration 2, and trained on
    (run / "summary.json").write_text(json.dumps({"exit_code": 0, "env_steps": 320}))
    assert follow(run)
    assert Service.kept == [64, 128, 192, 256, 320] and Service.finished


def test_nothing_is_sent_twice_to_a_tracker_without_memory(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "remembers", False)
    write(run, 1, 2)
    follow(run)
    write(run, 1, 2, 3)
    follow(run)
    assert Service.kept == [64, 128, 192]


def test_a_lost_network_loses_nothing_and_is_reported_once(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, 1, 2, 3, 4)
    Service.failures = 3
    ours, theirs = os.pipe()
    with open(ours, "rb") as pipe:
        thread = threading.Thread(target=lambda: Following("trackio", run, pipe).follow())
        thread.start()
        while Service.failures and thread.is_alive():
            pass
        os.close(theirs)
        thread.join(10)
    warned = capsys.readouterr().out
    assert warned.startswith("ConnectionError: gone; the run goes on") and warned.count("\n") == 1
    assert Service.kept == [64, 128, 192, 256]


def test_unsent_records_wait_for_the_next_start(run: Path) -> None:
    write(run, 1, 2, 3)
    Service.failures = 2
    assert not follow(run)
    assert follow(run)
    assert Service.kept == [64, 128, 192]


def test_a_damaged_record_or_state_ends_nothing(run: Path) -> None:
    (run / "metrics.jsonl").write_text(
        'nonsense\n[1]\n{"steps_global": "x"}\n{"steps_global": 64, "iteration": 1}\n'
    )
    (run / "logs" / "tracker-trackio.json").write_text('{"run_id": 3')
    assert follow(run)
    assert Service.kept == [64]


@pytest.mark.parametrize(
    "state",
    [
        {"run_id": "0' OR tags.mlflow.user = 'me", "sent": 0},
        {"run_id": "../../../elsewhere", "sent": 0},
        {"run_id": "0123456789abcdef", "sent": float("inf")},
    ],
)
def test_a_strangers_state_names_no_other_run(run: Path, state: dict[str, Any]) -> None:
    """The id becomes part of a query and of folders' names."""
    path = run / "logs" / "tracker-trackio.json"
    path.write_text(json.dumps(state))
    write(run, 1)
    assert follow(run)
    assert json.loads(path.read_text())["run_id"] != state["run_id"]


def test_no_secret_is_shown() -> None:
    shown = without_secrets("GET https://me:hunter2@host/x with hf_abcdefghijkl and " + 40 * "a")
    assert shown == "GET https://***@host/x with *** and ***"


def test_a_missing_package_is_one_line() -> None:
    check_installed([])
    with pytest.raises(InputError, match=r'pip install "parallel_ppo\[no_such_tracker\]"'):
        check_installed(["no_such_tracker"])


@pytest.mark.multiprocess
def test_trackers_change_no_learning_and_fail_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "trackio.py").write_text(FAKE)
    paths = {"PYTHONPATH": str(tmp_path / "packages"), "FAKE_TRACKIO": str(tmp_path / "sent")}
    arguments = [*SMALL, "--total-timesteps", "320", "--set", "logging.trackers=[trackio]", "--quiet"]
    whole = command("train_timed.py", *arguments, directory=tmp_path / "whole", env=paths)
    assert whole.code == 0 and whole.err == ""
    assert (tmp_path / "sent-finished").exists()  # the run waited for it
    sent = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    records = [(record["steps_global"], record["policy_sha256"]) for record in whole.metrics]
    assert [(step, sha) for _, step, _, sha in sent] == records
    assert [iteration for _, _, iteration, _ in sent] == [1, 2, 3, 4, 5]

    failing = command(
        "train_timed.py", *arguments, directory=tmp_path / "failing", env=paths | {"FAKE_FAILURE": "1"}
    )
    assert failing.code == 0 and failing.learning == whole.learning
    assert failing.err.count("\n") == 1 and "hunter2" not in failing.err
    assert "tracker trackio: ConnectionError: no route" in failing.err
