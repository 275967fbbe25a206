"""The user's budget replaces the file's, and schedules follow it."""

from pathlib import Path

import pytest

from parallel_ppo.commands.train import train_parallel
from parallel_ppo.commands.training_flags import CLUSTER_FLAGS, COMMON_FLAGS, build_parser, settings_from
from parallel_ppo.exits import InputError
from parallel_ppo.settings.schema import TrainingSettings
from parallel_ppo.settings.yaml_files import to_yaml

CARTPOLE = ["--env", "CartPole-v1"]  # 100,000 steps, with linear schedules over as many


def chosen(*flags: str, kind: str = "parallel") -> tuple[TrainingSettings, list[str]]:
    lines: list[str] = []
    arguments = build_parser("", COMMON_FLAGS | CLUSTER_FLAGS, ()).parse_args(list(flags))
    return settings_from(arguments, kind, lines.append).training, lines


def test_a_given_budget_replaces_the_other_one_of_the_file() -> None:
    by_time, _ = chosen(*CARTPOLE, "--duration", "30s")
    assert (by_time.total_timesteps, by_time.duration) == (None, pytest.approx(30 / 3600))
    both, _ = chosen(*CARTPOLE, "--duration", "30s", "--total-timesteps", "5e5")
    assert (both.total_timesteps, both.duration) == (500_000, pytest.approx(30 / 3600))
    by_file, _ = chosen(*CARTPOLE)
    assert (by_file.total_timesteps, by_file.duration) == (100_000, None)


@pytest.mark.parametrize(
    "flag", [["--total-timesteps", "5e7"], ["--set", "training.total_timesteps=50000000"]]
)
def test_schedules_stretch_to_a_longer_step_budget(flag: list[str]) -> None:
    assert chosen(*CARTPOLE, *flag)[0].schedule_steps == 50_000_000
    assert chosen(*CARTPOLE, *flag, "--set", "training.schedule_steps=7")[0].schedule_steps == 7


def test_a_shorter_budget_is_the_beginning_of_the_longer_run() -> None:
    assert chosen(*CARTPOLE, "--total-timesteps", "1000")[0].schedule_steps == 100_000


def test_a_duration_keeps_the_horizon_and_one_line_says_so() -> None:
    training, lines = chosen(*CARTPOLE, "--duration", "30s")
    assert training.schedule_steps == 100_000
    assert [line for line in lines if "linear schedules end after 100,000 steps" in line]


def test_a_users_own_file_and_a_resume_keep_the_horizon(tmp_path: Path) -> None:
    own = tmp_path / "config.yaml"
    arguments = build_parser("", COMMON_FLAGS, ()).parse_args([*CARTPOLE])
    own.write_text(to_yaml(settings_from(arguments, "parallel", lambda line: None)))
    for where in (["--config", str(own)], ["--resume", str(tmp_path)]):
        assert chosen(*where, "--total-timesteps", "5e7")[0].schedule_steps == 100_000


def test_a_number_of_hours_is_reported() -> None:
    assert "--duration 5 means 5 hours; minutes are 5m" in chosen("--duration", "5")[1]
    assert not any("means" in line for line in chosen("--duration", "5h")[1])


def test_a_master_address_needs_the_number_of_nodes() -> None:
    with pytest.raises(InputError, match="give their number with --nnodes"):
        chosen("--master-addr", "10.0.0.1", kind="cluster")
    chosen("--master-addr", "10.0.0.1", "--nnodes", "2", kind="cluster")


def test_epochs_of_one_step_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def warning(*flags: str) -> str:
        assert (
            train_parallel([*CARTPOLE, *flags, "--print-config", "--output-dir", str(tmp_path / "run")]) == 0
        )
        return capsys.readouterr().err

    small = ["--num-envs", "8", "--n-steps", "32"]
    assert "an epoch is one optimizer step" in warning(*small) and "--batch-size 32" in warning(*small)
    assert not warning()  # the file's own choice
    assert not warning(*small, "--batch-size", "256") and not warning("--num-envs", "16", "--n-steps", "32")
