"""Runs that earlier versions left half-way, one for each feature, learn what those versions would have."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, train_here
from tests.contract.machine import this_machine

VERSIONS = ROOT / "tests" / "fixtures"
EXPECTED = {path.parent: json.loads(path.read_text()) for path in sorted(VERSIONS.glob("*/expected.json"))}
RUNS = [
    pytest.param(
        version / name,
        id=f"{version.name}-{name}",
        marks=[pytest.mark.procgen] if name.startswith("plr") else [],
    )
    for version, expected in EXPECTED.items()
    for name in expected["runs"]
]


@pytest.mark.parametrize("saved", RUNS)
def test_a_run_of_an_earlier_version_continues_exactly(saved: Path, tmp_path: Path) -> None:
    expected = EXPECTED[saved.parent]
    is_portable = expected["runs"][saved.name]["portable"]
    for what, there in expected["machine"].items():
        here = this_machine()[what]
        if here != there and not is_portable:
            pytest.skip(f"the {what} differs, and bits with it: {there} wrote the fixture, this is {here}")
    run = shutil.copytree(saved, tmp_path / "run")
    steps = str(expected["steps"])
    outcome = train_here(run, "--resume", str(run), "--trust-checkpoint", "--total-timesteps", steps)
    found = {name: outcome.summary[name] for name in expected["runs"][saved.name]}
    assert found == expected["runs"][saved.name] and outcome.summary["env_steps"] == expected["steps"]
