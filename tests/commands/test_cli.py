"""The training commands as a user meets them."""

import json
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml

from parallel_ppo.commands.train import train_cluster, train_sequential
from parallel_ppo.commands.training_flags import GROUPS
from tests.conftest import ROOT, command, train

FAST = ["--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "16", "--batch-size", "64",
        "--total-timesteps", "256"]  # fmt: skip


def test_print_config_loads_again(tmp_path: Path) -> None:
    first = command("train_parallel_timed.py", "--env", "starpilot", "--seed", "3", "--print-config")
    assert first.code == 0, first.err
    file = tmp_path / "printed.yaml"
    file.write_text(first.out)
    assert yaml.safe_load(first.out)["env"]["id"] == "procgen:procgen-starpilot-v0"
    assert command("train_parallel_timed.py", "--config", str(file), "--print-config").out == first.out


@pytest.mark.multiprocess
def test_a_run_directory_is_as_designed_and_never_overwritten(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = train(directory, *FAST, "--num-workers", "1")
    names = {path.name for path in directory.iterdir()}
    assert {
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "logs",
        "checkpoints",
        "summary.json",
    } <= names
    kept = {path.name for path in (directory / "checkpoints").iterdir()}
    assert {"step_0", "step_256", "latest", "ppo_parallel_final.safetensors"} <= kept
    wanted = (
        "iteration steps_global world_size num_workers policy_sha256 fps fps_mean rollout_fps t_iter"
        " t_rollout t_learn t_sync loss policy_loss value_loss entropy approx_kl clip_frac explained_variance"
        " grad_norm learning_rate episode_return_mean episode_length_mean wall_time cpu_percent rss_mb"
    )
    assert set(wanted.split()) <= set(run.metrics[0])
    wanted = (
        "env_steps iterations wall_time fps_mean policy_sha256 final_return_mean num_workers stop_reason"
        " bit_exact worker_restarts peak_rss_mb"
    )
    assert set(wanted.split()) <= set(run.summary)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    again = command("train_parallel_timed.py", *FAST, directory=directory)
    assert again.code == 2
    assert "already contains a run" in again.err and again.err.count("\n") == 1
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.multiprocess
def test_without_output_dir_the_next_free_one_is_taken(tmp_path: Path) -> None:
    for number in (1, 2):
        outcome = command("train_timed.py", *FAST, "--num-threads", "1", "--verbose", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / f"runs/sequential-{number}/summary.json").exists()
    assert "using config/cartpole.yaml for CartPole-v1" in outcome.out


def test_places_of_train_ppo_sequential(tmp_path: Path) -> None:
    """By default a place of its own each time; where places are named, a resume finds both."""
    one = [*FAST, "--num-threads", "1"]
    named = ["--log-dir", "logs/mine", "--checkpoint-dir", "weights/mine"]
    for number, places in ((1, []), (2, []), (None, named)):
        outcome = command("train_ppo_sequential.py", *one, *places, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        where = tmp_path / ("logs/mine" if number is None else f"runs/sequential-{number}")
        assert (where / "metrics.jsonl").exists()
    assert (tmp_path / "weights/mine/ppo_sequential_final.safetensors").exists()
    for place, steps in (("logs/mine", "512"), ("weights/mine", "768")):
        more = ["--resume", place, "--total-timesteps", steps]
        resumed = command("train_ppo_sequential.py", *more, cwd=tmp_path)
        assert resumed.code == 0, resumed.err
        assert (tmp_path / f"weights/mine/step_{steps}").exists()


@pytest.mark.multiprocess
def test_learning_settings_cannot_change_on_resume(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(directory, *FAST, "--num-workers", "1")
    outcome = command("train_parallel_timed.py", "--resume", str(directory), "--learning-rate", "0.5")
    assert outcome.code == 2
    assert outcome.err.startswith(
        "error: --learning-rate: is 0.001 in the saved run and cannot change to 0.5"
    )


def test_a_spent_budget_and_a_schedule_that_is_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    linear = ["--set", "training.learning_rate_schedule=linear", "--set", "training.schedule_steps=256"]
    assert train_sequential([*FAST, *linear, "--num-threads", "1", "--output-dir", "runs/one"]) == 0
    header, portable, done, reached, *closing = capsys.readouterr().out.splitlines()
    assert header == "CartPole-v1  ppo, mlp  seed 1  1 process  -> runs/one"
    assert portable.startswith("portable: false (env.id: CartPole-v1 calls cos, sin")
    assert re.fullmatch(r"done: 256 steps in [\d.]+ s", done)
    assert re.fullmatch(r"training return, last \d+ episodes: [\d.]+", reached)
    python = Path(sys.executable).with_name("python")  # which a shell may not find
    found = Path(shutil.which("python") or "") == python
    following = f"next: {'python' if found else python} {ROOT}/evaluate.py runs/one"
    assert closing == ["run directory: runs/one", following]
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert train_sequential(["--resume", "one"]) == 0
    said = capsys.readouterr().out
    assert "its budget is spent (256 steps" in said and "give a larger --total-timesteps" in said
    assert before == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}

    assert train_sequential(["--resume", "one", "--total-timesteps", "512"]) == 0
    captured = capsys.readouterr()
    assert "warning: training.learning_rate has been 0 since 256 steps" in captured.err
    assert "warning" not in captured.out
    records = [json.loads(line) for line in Path("runs/one/metrics.jsonl").read_text().splitlines()]
    assert [record["learning_rate"] > 0 for record in records] == [True, False]
    assert records[0]["policy_sha256"] == records[1]["policy_sha256"], "as the warning says"

    extended = ["--set", "training.schedule_steps=1024", "--total-timesteps", "768"]
    assert train_sequential(["--resume", "one", *extended]) == 0
    captured = capsys.readouterr()
    assert "training.schedule_steps: was 256 and is 1024 from here on" in captured.out
    assert captured.err == ""
    summary = json.loads(Path("runs/one/summary.json").read_text())
    assert summary["schedule_changes"] == [{"env_steps": 512, "training.schedule_steps": [256, 1024]}]
    assert summary["policy_sha256"] != records[1]["policy_sha256"]
    assert "schedule_steps: 1024" in Path("runs/one/config.yaml").read_text()
    assert train_sequential(["--resume", "one", "--total-timesteps", "1024", "--quiet"]) == 0


def test_a_missing_package_is_named_with_the_flag_and_in_the_report_of_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def needs_more() -> None:
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[more]"`')

    gymnasium.register("Needy-v0", entry_point=needs_more)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert train_cluster(["--env", "Needy-v0", "--node-rank", "0", "--nnodes", "1"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: --env: ") and '`pip install "gymnasium[more]"`' in line
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == line.strip()


def test_help_is_grouped_and_names_defaults() -> None:
    shown = command("train_timed.py", "--help", env={"COLUMNS": "120"}).out
    groups = re.findall(r"^([a-z ]+):$", shown, re.MULTILINE)
    assert groups == ["options", *GROUPS, "examples"]
    environment = shown.partition("\nenvironment:\n")[2].partition("\n\n")[0]
    assert "--num-envs N " in environment and "environments in total (default: 32)" in environment
    assert "--duration TIME " in shown and "--num-threads N|auto" in shown
