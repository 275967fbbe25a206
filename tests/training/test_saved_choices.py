"""Choices that a run makes at its start are saved; a run from before they existed goes on as it was."""

from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.planning import as_before


def test_a_run_that_saved_no_slice_size_keeps_the_one_of_its_time() -> None:
    saved = Settings().changed("env", num_envs=8).changed("training", policy="mlp", batch_size=256)
    assert saved.shape.slice_envs == 4 and as_before(saved).shape.slice_envs == 8
    chosen = saved.changed("env", slice_envs=4)
    assert as_before(chosen).shape.slice_envs == 4
    in_turn = saved.changed("training", algorithm="a3c")
    assert as_before(in_turn).env.slice_envs is None and in_turn.shape.slice_envs == 1
