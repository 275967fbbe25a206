"""What a run needs is counted before its first worker starts."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.memory.shared import touched_bytes
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.training.needs import PROCESS_BYTES, check_resources
from parallel_ppo.training.planning import make_plan
from parallel_ppo.workers.memory import arrays_of


def test_what_every_worker_and_a_snapshot_hold_of_a_large_network_is_counted(tmp_path: Path) -> None:
    """Shared memory alone was counted: the workers of a network of 0.5 GB were refused memory as they ran."""
    settings = load_settings(file=None, flags={"env.id": "CartPole-v1", "parallel.num_workers": 2})
    plan, num_parameters = make_plan(settings, kind="parallel", output=tmp_path / "run"), 128_000_000
    shared = (
        touched_bytes(arrays_of(plan.settings, plan.spec, num_parameters), plan.settings) + 3 * PROCESS_BYTES
    )

    def check(available: int) -> None:
        machine = replace(plan.machine, memory_bytes=available, memory_limit_bytes=available)
        check_resources(plan._replace(machine=machine), num_parameters)

    check(shared + 5_200_000_000)
    with pytest.raises(InputError, match="of memory but"):
        check(shared + 4_900_000_000)


def test_a_full_disk_has_the_room_of_older_checkpoints_but_not_of_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(file=None, flags={"env.id": "CartPole-v1"})
    plan = make_plan(settings, kind="sequential", output=tmp_path / "run")
    plan = plan._replace(machine=replace(plan.machine, memory_bytes=1 << 40, memory_limit_bytes=1 << 40))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    weights = plan.directory.checkpoints / "step_1" / "policy.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    os.truncate(weights, 1 << 40)
    with pytest.raises(InputError, match="bytes of disk but 0 are free"):
        check_resources(plan, 1000)
    weights.write_bytes(bytes(9_000_000))
    check_resources(plan, 1000)
