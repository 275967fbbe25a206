"""Runs on one machine pin their workers to different CPUs."""

import uuid
from collections.abc import Iterator

import pytest

from parallel_ppo.machine import cpu_claims
from parallel_ppo.machine.cpu_claims import CpuClaims, beside_other_runs
from parallel_ppo.machine.placement import Placement, plan_placement
from tests.machine.machines import machine


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CpuClaims]]:
    """Five runs, apart from those that really train on this machine."""
    monkeypatch.setattr(cpu_claims, "NAME", f"\0{uuid.uuid4()} {{}}")
    runs = [CpuClaims() for _ in range(5)]
    yield runs
    for run in runs:
        run.close()


def placed(num_workers: int, run: CpuClaims, num_cores: int = 4) -> Placement:
    made_up = machine(num_cores)
    return beside_other_runs(plan_placement(made_up, num_workers=num_workers, pinning="auto"), made_up, run)


def test_simultaneous_runs_get_different_cpus(runs: list[CpuClaims]) -> None:
    assert [placed(2, run).worker_cpus for run in runs[:2]] == [(0, 1), (2, 3)]
    assert placed(1, runs[2]).worker_cpus == (None,)
    assert "other runs" in placed(1, runs[2]).reasons[-1]


def test_a_run_that_ended_frees_its_cpus(runs: list[CpuClaims]) -> None:
    placed(2, runs[0])
    assert placed(3, runs[1]).worker_cpus == (None, None, None)
    assert not runs[1].sockets, "an unpinned run keeps no claim"
    runs[0].close()
    assert placed(8, runs[2]).worker_cpus == (0, 1, 2, 3, 0, 1, 2, 3)
