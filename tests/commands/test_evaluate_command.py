import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from parallel_ppo.commands.evaluate import evaluate
from parallel_ppo.evaluation import report as reports
from parallel_ppo.evaluation.evaluating import make_report
from parallel_ppo.workers.playing import Played
from tests.conftest import small_settings
from tests.evaluation.weight_files import write_weights

NAN = float("nan")


def played(*returns: float, complete: float = 1.0) -> list[Played]:
    return [Played(value, 10 + index, index, complete, 0.0) for index, value in enumerate(returns)]


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "cartpole.safetensors", small_settings())


@pytest.mark.multiprocess
def test_the_json_is_the_same_for_any_number_of_workers(cartpole: Path, tmp_path: Path) -> None:
    texts = []
    for workers in ("1", "2"):
        output = tmp_path / workers / "result.json"
        arguments = ["--checkpoint", str(cartpole), "--num-episodes", "20", "--num-workers", workers]
        assert evaluate([*arguments, "--quiet", "--output", str(output)]) == 0
        texts.append(output.read_bytes())
    assert texts[0] == texts[1]
    report = json.loads(texts[0])
    part = report["levels"]["train"]
    returns = [episode["return"] for episode in part["episodes"]]
    assert len(returns) == 20 and np.isclose(part["return"]["mean"]["value"], np.mean(returns))
    assert part["return"]["mean"]["low"] < np.mean(returns) < part["return"]["mean"]["high"]
    assert part["success_rate"] is None and report["gap"] is None
    assert len(set(returns)) > 3, "the slots play different episodes"


def test_a_folder_that_a_terminal_could_obey(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "\x1b]0;owned\x07" / "result.json"
    arguments = ["--num-episodes", "1", "--max-steps", "5", "--num-workers", "1", "--output", str(output)]
    assert evaluate(["--checkpoint", str(cartpole), *arguments]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\\x1b]0;owned\\x07/result.json" in said


@pytest.mark.multiprocess
@pytest.mark.procgen
def test_train_and_test_levels_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small_settings("coinrun", "nature", env__num_levels=5)
    file = write_weights(tmp_path / "coinrun.safetensors", settings)
    arguments = ["--num-episodes", "9", "--levels", "train,test", "--max-steps", "30", "--num-workers", "2"]
    assert evaluate(["--checkpoint", str(file), *arguments]) == 0
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert set(report["levels"]) == {"train", "test"} and report["gap"]["return"]["value"] is not None
    assert report["levels"]["test"]["first_level"] == 5
    assert all(len(part["episodes"]) == 9 for part in report["levels"].values())
    assert "gap" in capsys.readouterr().out


def test_levels_that_begin_as_a_training_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    settings = small_settings("coinrun", "nature", env__num_levels=5)
    policy = SimpleNamespace(
        settings=settings,
        weights=SimpleNamespace(settings=settings, env_steps=0),
        filled=SimpleNamespace(policy_sha256=""),
    )
    test = [*played(0, 10, 0, 10), *(one._replace(seen=1.0) for one in played(10, 10))]
    episodes = {"train": played(10, 10), "test": test}
    strict, old = (make_report(policy, "", episodes, include_seen=included) for included in (False, True))
    means = [each["levels"]["test"]["return"]["mean"]["value"] for each in (strict, old)]
    assert means == [5, pytest.approx(40 / 6)] and strict["gap"]["return"]["value"] == 5
    for report in (strict, old):
        frames = report["first_frames"]
        assert [frames[f"return_{how}_seen"]["value"] for how in ("without", "with")] == means
    assert (strict["first_frames"]["seen"], strict["first_frames"]["included"]) == (2, False)
    Console(width=140).print(reports.table(strict))
    assert "2 of 32, left out" in capsys.readouterr().out


def test_figures() -> None:
    settings = small_settings("coinrun", "nature", env__num_levels=5).env
    part = reports.part_report(played(0, 10, 10, 10, 0, 10, 10, 10), settings, "train")
    assert part["return"]["mean"]["value"] == 7.5
    assert part["normalised_score"]["value"] == pytest.approx(0.5)
    assert part["success_rate"]["value"] == 1
    gap = reports.gap_report(played(10, 10, 10), played(0, 0, 10, complete=0.0), settings)
    assert gap["return"]["value"] == pytest.approx(20 / 3)
    assert gap["normalised_score"]["value"] == pytest.approx(4 / 3)
    assert gap["success_rate"]["value"] == 1
    assert gap["return"]["low"] <= gap["return"]["value"] <= gap["return"]["high"]


def test_an_unfinished_episode_was_not_solved_and_all_solved_is_no_certainty() -> None:
    """60 solved and 40 cut were once told as 100% [100%, 100%]."""
    settings = small_settings("coinrun", "nature", env__num_levels=5).env
    cut = [Played(0.0, 1000.0, NAN, NAN, 1.0)]
    part = reports.part_report([*played(*[10] * 60), *cut * 40], settings, "train")
    rate = part["success_rate"]
    assert rate["value"] == 0.6 and 0.5 < rate["low"] < 0.51 and 0.69 < rate["high"] < 0.7
    assert [episode["success"] for episode in part["episodes"]] == [True] * 60 + [False] * 40
    assert reports.part_report(cut * 3, settings, "train")["success_rate"]["value"] == 0
    sure = reports.part_report(played(*[10] * 60), settings, "train")["success_rate"]
    assert sure["value"] == 1 and 0.93 < sure["low"] < 0.95
    equal = reports.part_report(played(*[10] * 60), settings, "train")
    assert equal["return"]["mean"] == {"value": 10.0, "low": None, "high": None}
    assert "10.00 (all equal)" in [*reports.table({"levels": {"train": equal}, "gap": None}).columns[1].cells]
    gap = reports.gap_report([*played(*[10] * 60), *cut * 40], played(*[10] * 100), settings)["success_rate"]
    assert gap["value"] == pytest.approx(-0.4) and gap["low"] < -0.4 < gap["high"] < -0.29


def test_exploration_is_one_level_not_all() -> None:
    settings = small_settings("coinrun", "nature").env.model_copy(update={"distribution_mode": "exploration"})
    episodes = [Played(10.0, 10.0, 1949448038, 1.0, 0.0)] * 2
    part = reports.part_report([Played(0.0, 1000.0, NAN, NAN, 1.0), *episodes], settings, "train")
    assert (part["first_level"], part["num_levels"]) == (1949448038, 1)
    cells = [*reports.table({"levels": {"train": part}, "gap": None}).columns[1].cells]
    assert "1949448038 only" in cells and "all" not in cells


def test_one_episode_has_no_interval_and_gymnasium_no_score() -> None:
    settings = small_settings().env
    part = reports.part_report([Played(3.0, 3.0, NAN, NAN, 1.0)], settings, "train")
    assert part["return"]["mean"] == {"value": 3.0, "low": None, "high": None}
    assert part["normalised_score"] is None and part["success_rate"] is None and part["unfinished"] == 1
    json.dumps(part, allow_nan=False)
