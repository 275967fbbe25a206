"""A search logs its trials, continues where the log ends, and draws valid settings."""

import json
from pathlib import Path

import pytest

from parallel_ppo.commands.training_flags import shipped_config
from parallel_ppo.exits import InputError
from parallel_ppo.settings.layers import load_settings
from tests.reports.run_copies import copy_run
from tools import search


def test_a_search_continues_where_its_log_ends(
    tmp_path: Path, real_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    def train(line: list[str], run_directory: Path, output: Path) -> None:
        lines.append(line)
        copy_run(run_directory, env__id="Ant-v5")

    monkeypatch.setattr(search.trainer, "train", train)
    monkeypatch.setattr(search, "command", lambda *words: list(words))
    words = ["--env", "Ant-v5", "--total-timesteps", "500", "--seeds", "7,8", "--output-dir", str(tmp_path)]
    clock = iter(range(0, 10_000, 100))  # each trial takes 100 seconds
    monkeypatch.setattr(search.time, "monotonic", lambda: next(clock))
    search.main([*words, "--duration", "150s"])
    search.main([*words, "--duration", "250s"])
    log = json.loads((tmp_path / "search.json").read_text())
    assert [len(trial["returns"]) for trial in log["trials"]] == [2, 2, 2]
    assert log["trials"][0]["settings"] == {} != log["trials"][1]["settings"]
    assert log["trials"][2]["settings"] == search.drawn(2) and len(lines) == 6
    assert lines[0][:7] == ["train", "--env", "Ant-v5", "--seed", "7", "--total-timesteps", "500"]
    with pytest.raises(InputError, match="other steps or seeds"):
        search.main([*words, "--duration", "1h", "--seeds", "9"])


def test_every_draw_is_valid() -> None:
    for trial in range(1, 40):
        flags = {f"training.{name}": value for name, value in search.drawn(trial).items()}
        flags["training.hidden_sizes"] = json.loads(flags["training.hidden_sizes"])
        load_settings(file=shipped_config("Ant-v5", "parallel"), flags=flags)
