"""Which levels `play.py --levels failed` films."""

import numpy as np
import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.reports.levels import failed_levels
from parallel_ppo.reports.runs import load_run
from tests.reports.run_copies import copy_run, read_rows, write_rows


def run_with(path, episodes):
    """Rows of step, level, success."""
    real = read_rows(copy_run(path) / "episodes.jsonl")[0]
    rows = [real | {"step": step, "level_seed": level, "success": won} for step, level, won in episodes]
    write_rows(path / "episodes.jsonl", rows)
    return load_run(path)


def test_failed_levels_come_hardest_first(tmp_path):
    run = run_with(tmp_path / "run", [
        (10, 7, False), (20, 7, False), (30, 8, True), (40, 8, False), (50, 9, True), (60, 8, False),
        (70, 7, False), (80, 10, False), (90, 9, False), (95, 9, True), (99, 10, True),
    ])  # fmt: skip
    assert failed_levels(run) == [7, 8, 10], "half is not most"


def test_only_the_last_episodes_of_a_level_count(tmp_path):
    lost = [(step, 1, step <= 20) for step in range(1, 26)]
    won = [(step, 2, step > 2) for step in range(1, 6)]
    assert failed_levels(run_with(tmp_path / "run", [*lost, *won])) == [1]


def test_episodes_without_a_level_are_skipped(tmp_path):
    run = run_with(tmp_path / "run", [(1, None, True), (2, 3, False)])
    assert failed_levels(run) == [3] and np.isnan(run.episodes.level[0])


def test_a_run_that_cannot_know_says_why(tmp_path):
    with pytest.raises(InputError, match="does not record which levels were solved"):
        failed_levels(load_run(copy_run(tmp_path / "cartpole")))
    with pytest.raises(InputError, match="none of its episodes has ended yet"):
        failed_levels(run_with(tmp_path / "run", []))
