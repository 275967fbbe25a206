"""The runs of a suite as processes, with scripts in place of trainer and evaluation."""

import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from parallel_ppo.commands import suite, suite_runs
from parallel_ppo.exits import InputError
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.reports import trainer
from parallel_ppo.reports.suite import Job, Plan, load_plan, save_plan
from parallel_ppo.reports.trainer import TrainerFailed
from parallel_ppo.storage.user_key import signature
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies
HERE = Path(__file__).resolve().parent
TRAINER = f"""
import json, os, sys, time
sys.path[:0] = [{str(HERE.parents[1])!r}]
from pathlib import Path
from tests.reports.run_copies import copy_run
word = dict(zip(sys.argv[1::2], sys.argv[2::2]))
path = Path(word["--output-dir"])
if not path.exists():
    settings = dict(env__id=f'procgen:procgen-{{word["--env"]}}-v0', env__num_levels=20)
    copy_run(path, seed=int(word["--seed"]), workers=1, **settings)
(path / "cpus").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
(path / "began").write_text(str(time.time()))
deadline = time.monotonic() + 120
while len(list(path.parent.glob("*/began"))) < int(word.get("--together", 1)):
    assert time.monotonic() < deadline, "the others do not run at the same time"
    time.sleep(0.02)
sys.exit(int(word.get("--exit", 0)))
"""
EVALUATOR = f"""
import json, sys
sys.path[:0] = [{str(HERE.parents[1])!r}]
from pathlib import Path
from tests.reports.run_copies import write_evaluation
path, word = Path(sys.argv[1]), dict(zip(sys.argv[2::2], sys.argv[3::2]))
write_evaluation(
    path, dict.fromkeys(word["--levels"].split(","), 7.5), file=word["--output"],
    num_episodes=int(word["--num-episodes"]), max_steps=int(word["--max-steps"]), seed=int(word["--seed"]),
)
"""


def test_the_mujoco_suite_is_ten_tasks_of_ten_seeds():
    whole = suite._new_plan(suite._parser().parse_args(["--suite", "mujoco"]), [])
    assert (len(whole.games), whole.seeds, whole.total_timesteps) == (10, list(range(1, 11)), 1_000_000)
    assert whole.evaluation_episodes == 0 and whole.duration is None
    words = ["--suite", "mujoco", "--seeds", "4", "--games", "Ant-v5", "--duration", "1m"]
    part = suite._new_plan(suite._parser().parse_args(words), [])
    assert (part.games, part.seeds, part.total_timesteps) == (["Ant-v5"], [4], None)
    for game in whole.games:
        assert (ROOT / "config" / f"{game.lower().removesuffix('-v5')}.yaml").exists()


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train").write_text(TRAINER)
    (folder / "evaluate").write_text(EVALUATOR)
    monkeypatch.setattr(
        suite_runs, "command", lambda name, *rest: [sys.executable, str(folder / name), *rest]
    )
    monkeypatch.setattr(trainer, "POLL_SECONDS", 0.02)
    directory = tmp_path / "suite"
    directory.mkdir()
    return directory


def plan(**changes):
    return Plan(**{"games": ["coinrun"], "seeds": [1], "total_timesteps": 100, "duration": None, **changes})


def run_all(chosen, directory):
    save_plan(chosen, directory)
    return suite_runs.run_all(chosen, directory, Console(quiet=True)), load_plan(directory)


def test_only_unfinished_runs_are_trained_and_evaluated(project):
    code, after = run_all(plan(seeds=[1, 2], finished=["coinrun-seed1"]), project)
    assert code == 0 and after.finished == ["coinrun-seed1", "coinrun-seed2"]
    assert not (project / "coinrun-seed1").exists()
    (game,) = json.loads((project / "results.json").read_text())["tables"]["Mean returns"].values()
    assert game["training levels"]["value"] == game["unseen levels"]["value"] == 7.5


def test_a_failed_run_does_not_stop_the_others(project, capsys):
    settings = {"bad": ["--exit", "4"], "good": []}
    code, after = run_all(plan(settings=settings), project)
    assert code == 4 and after.finished == ["coinrun-good-seed1"]
    assert "exit code 4" in after.failed["coinrun-bad-seed1"]
    assert "exit code 4" in capsys.readouterr().err, "also where the console is quiet"


def test_a_stopped_run_stops_the_suite_without_a_verdict(project):
    with pytest.raises(TrainerFailed):
        run_all(plan(arguments=["--exit", "75"]), project)
    assert load_plan(project).finished == [] and load_plan(project).failed == {}


def test_runs_at_once_have_cores_of_their_own(project):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    _, after = run_all(plan(seeds=[1, 2], at_once=2, arguments=["--together", "2"]), project)
    assert len(after.finished) == 2 and after.failed == {}
    first, second = (json.loads((project / name / "cpus").read_text()) for name in after.finished)
    assert not set(first) & set(second)


def test_workers_of_finished_runs_decide_how_many_run_at_once(project):
    assert suite_runs.runs_at_once(plan(), project) == 1
    run = project / "coinrun-seed1"
    run.mkdir()
    cores = len(read_machine().cpus)
    for workers, expected in ((1, cores), (cores, 1)):
        (run / "summary.json").write_text(json.dumps({"num_workers": workers}))
        assert suite_runs.runs_at_once(plan(finished=["coinrun-seed1"]), project) == expected


def test_shares_of_the_cpus_are_whole_and_apart():
    machine = read_machine()
    for number in (1, 2, 1000):
        shares = suite_runs.cpu_shares(machine, number)
        assert sorted(cpu for share in shares for cpu in share) == sorted(machine.cpus)
        assert all(shares) and len(shares) == min(number, len(machine.cpus))


def test_a_run_with_a_checkpoint_is_resumed(tmp_path):
    chosen = plan(arguments=["--policy", "nature"], settings={"a": ["--x", "1"]})
    job = Job("coinrun", "a", 1)
    new = suite_runs.training_arguments(chosen, job, tmp_path)
    assert new[:4] == ["--env", "coinrun", "--seed", "1"] and "--x" in new and "nature" in new
    (tmp_path / "checkpoints" / "latest").mkdir(parents=True)
    assert suite_runs.training_arguments(chosen, job, tmp_path)[:2] == ["--resume", str(tmp_path)]


@pytest.mark.parametrize("flag", ["--seeds", "--eval-episodes", "--games", "--total-timesteps"])
def test_a_resumed_suite_keeps_its_settings(flag, tmp_path):
    save_plan(plan(), tmp_path)
    with pytest.raises(InputError, match="takes its settings from that suite"):
        suite.main(["--resume", str(tmp_path), flag, "2"])


def test_flags_of_a_suite_of_another_user_are_not_run(project):
    own, other = plan(arguments=["--policy", "nature"]), plan(arguments=["--trust-checkpoint"])
    for chosen in (own, other):
        save_plan(chosen, project)
        with pytest.raises(InputError, match="--trust-suite"):
            suite.main(["--resume", str(project), "--quiet"])
    (project / suite.SIGNATURE).write_text(signature(suite._work(own)))
    with pytest.raises(InputError, match="--trust-suite"):
        suite.main(["--resume", str(project), "--quiet"])
    save_plan(own, project)
    assert suite.main(["--resume", str(project), "--quiet"]) == 0


def test_a_resumed_suite_tries_failed_runs_again_on_other_cores(project):
    save_plan(plan(failed={"coinrun-seed1": "no luck"}), project)
    assert suite.main(["--resume", str(project), "--at-once", "2", "--quiet", "--trust-suite"]) == 0
    after = load_plan(project)
    assert after.finished == ["coinrun-seed1"] and after.failed == {} and after.at_once == 2


def test_a_resumed_suite_evaluates_what_has_other_settings(project):
    run_all(plan(), project)
    path = project / "coinrun-seed1" / "suite_evaluation.json"
    right = path.read_bytes()
    began = (project / "coinrun-seed1" / "began").read_bytes()
    for name, value in (("max_steps", 40), ("deterministic", True)):
        path.write_text(json.dumps(json.loads(right) | {name: value}))
        assert suite.main(["--resume", str(project), "--quiet", "--trust-suite"]) == 0
        assert path.read_bytes() == right
    assert load_plan(project).finished == ["coinrun-seed1"]
    assert (project / "coinrun-seed1" / "began").read_bytes() == began, "it was not trained again"
