"""The figure of algorithms at equal steps and at equal minutes."""

import json
from pathlib import Path

import pytest

from benchmarks import algorithms
from parallel_ppo.exits import InputError
from tests.reports.run_writer import write_run


def test_minutes_are_steps_at_the_speed_measured_alone(tmp_path: Path) -> None:
    for name, alone in (("coinrun-slow", 8.0), ("coinrun-fast", 2.0)):
        write_run(tmp_path / "learned" / name, rollout=50.0, learn=50.0, iterations=40)  # a busy machine
        write_run(tmp_path / "alone" / name, rollout=alone, learn=0.4, coordinator=0.0, noise=0.0)
    data = algorithms.read(tmp_path / "learned", tmp_path / "alone")
    fast, slow = algorithms.at_equal_effort(data["curves"])
    assert fast["steps_per_second"] == pytest.approx(2048 / 1.2, rel=1e-3)
    assert slow["steps_per_second"] == pytest.approx(2048 / 4.2, rel=1e-3)
    assert fast["return_at_steps"] == slow["return_at_steps"]
    assert slow["return_at_minutes"] < fast["return_at_minutes"] == fast["return_at_steps"]
    assert fast["minutes"] == pytest.approx(40 * 1.2 / 60, abs=0.01)
    assert len(algorithms.figure(json.loads(json.dumps(data))).subfigs) == 2


def test_a_speed_that_is_missing_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "learned" / "coinrun-ppo")
    (tmp_path / "alone").mkdir()
    with pytest.raises(InputError, match=r"--speeds .*: has no coinrun-ppo"):
        algorithms.read(tmp_path / "learned", tmp_path / "alone")
