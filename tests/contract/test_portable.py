"""The same parameters on machines that lack instructions, imitated by masks (`masks.py`).

`PARALLEL_PPO_OTHER_PYTHON` names an interpreter with another NumPy, whose runs must agree too.
"""

from typing import Any

import pytest

from tests.contract.masked_runs import CASES, can_run
from tests.contract.masks import AS_IT_IS, CONDITIONS, runs


@pytest.fixture(scope="module")
def as_it_is() -> dict[str, dict[str, Any]]:
    return runs(AS_IT_IS)


@pytest.mark.full
@pytest.mark.parametrize("name", CONDITIONS)
def test_portable_runs_learn_the_same_under_every_mask(name: str, as_it_is: dict) -> None:
    condition = CONDITIONS[name]
    if not condition.is_possible:
        pytest.skip("PARALLEL_PPO_OTHER_PYTHON is not set, or there is no emulator")
    found = runs(condition)
    different = [run for run in found if found[run] != as_it_is[run] and as_it_is[run]["portable"]]
    assert not different and len(found) > len(condition.names or CASES) / 2


@pytest.mark.full
def test_every_run_on_our_kernels_is_portable_but_for_its_environment(as_it_is: dict) -> None:
    assert as_it_is.keys() == set(filter(can_run, CASES))
    for name, found in as_it_is.items():
        assert found["portable"] == (not found["tied_to_machine"]), name
        assert all("env.id" in reason for reason in found["tied_to_machine"]), (name, found)
