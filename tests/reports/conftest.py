import pytest
from run_writer import write_run

from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.runs import load_run


@pytest.fixture
def twins(tmp_path):
    """A sequential group and a parallel one with two workers, two seeds each, that learned the same bits."""
    sequential = [
        write_run(tmp_path / f"s{seed}", kind="sequential", workers=1, seed=seed) for seed in (1, 2)
    ]
    parallel = [write_run(tmp_path / f"p{seed}", workers=2, seed=seed, iterations=16) for seed in (1, 2)]
    return [
        Group("sequential", tuple(load_run(path) for path in sequential)),
        Group("parallel", tuple(load_run(path) for path in parallel)),
    ]
