from pathlib import Path

import pytest

from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.runs import load_run
from tests.reports.run_copies import copy_run


@pytest.fixture
def twins(tmp_path: Path) -> list[Group]:
    """A sequential group and a parallel one with two workers, two seeds each, that learned the same bits."""
    sequential = [copy_run(tmp_path / f"s{seed}", kind="sequential", workers=1, seed=seed) for seed in (1, 2)]
    parallel = [copy_run(tmp_path / f"p{seed}", workers=2, seed=seed, iterations=16) for seed in (1, 2)]
    return [group("sequential", *sequential), group("parallel", *parallel)]


def group(label: str, *paths: Path) -> Group:
    return Group(label, tuple(load_run(path) for path in paths))
