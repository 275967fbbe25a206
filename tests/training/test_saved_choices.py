"""Choices that a run makes at its start are saved; a run from before they existed goes on as it was."""

import pytest

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training import planning
from parallel_ppo.training.planning import as_before, resolve_kernels


def test_a_run_that_saved_no_slice_size_keeps_the_one_of_its_time() -> None:
    saved = Settings().changed("env", num_envs=8).changed("training", policy="mlp", batch_size=256)
    assert saved.sizes.slice_envs == 4 and as_before(saved).sizes.slice_envs == 8
    chosen = saved.changed("env", slice_envs=4)
    assert as_before(chosen).sizes.slice_envs == 4
    in_turn = saved.changed("training", algorithm="a3c")
    assert as_before(in_turn).env.slice_envs is None and in_turn.sizes.slice_envs == 1


def test_a_run_of_small_images_that_began_on_torch_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "unusable", lambda *_: None)  # wherever the test runs
    spec = EnvSpec((7, 7, 3), "uint8", ActionSpec("categorical", (7,)), 0)
    new = Settings().changed("training", policy="small_image")
    assert resolve_kernels(new, spec).training.kernels == "native"
    saved = new.changed("training", kernels="torch")
    assert resolve_kernels(saved, spec) == saved
