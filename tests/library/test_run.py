"""A run's files may come from strangers."""

import os
from pathlib import Path

import pytest

from parallel_ppo import Run
from parallel_ppo.exits import InputError


def test_a_table_of_no_iterations_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with pytest.raises(InputError, match="has no finished iteration"):
        Run(tmp_path).frame()


def test_an_odd_summary_is_one_line(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    with pytest.raises(InputError, match="is missing"):
        _ = Run(tmp_path).summary
    os.mkfifo(summary)
    with pytest.raises(InputError, match="not a regular file"):
        _ = Run(tmp_path).summary
    summary.unlink()
    for text in ("[1]", "", "[" * 100_000, "\xff"):
        summary.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match="is not the summary of a run"):
            _ = Run(tmp_path).summary
