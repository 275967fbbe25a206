"""How many workers small work is worth: a decision by size, never by chance."""

import pytest

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.worker_count import useful_workers
from tests.conftest import small_settings

SPEC = EnvSpec((17,), "float32", ActionSpec("gaussian", (6,)), 0)


def settings(num_envs: int, batch_size: int, hidden: list[int]) -> Settings:
    return small_settings(
        env__num_envs=num_envs, training__n_steps=128, training__batch_size=batch_size,
        training__hidden_sizes=hidden
    )  # fmt: skip


def chosen(settings: Settings, most: int, microseconds: float) -> int:
    useful = useful_workers(settings, SPEC, most, lambda: microseconds * 1e-6)
    assert useful is not None
    assert f"takes {microseconds:.0f} us" in useful[1]
    return useful[0]


def test_cartpole_stays_in_one_process() -> None:
    assert chosen(settings(8, 256, [64, 64]), 8, 10) == 0


def test_one_slice_is_never_worth_a_process_however_slow_the_environment() -> None:
    assert chosen(settings(8, 256, [64, 64]), 8, 5000) == 0


def test_a_slow_simulation_gets_all_cores() -> None:
    assert chosen(settings(64, 4096, [64, 64]), 8, 1000) == 8


def test_more_workers_than_slices_bring_nothing() -> None:
    assert chosen(settings(16, 512, [64, 64]), 8, 1000) == 2


@pytest.mark.parametrize("most", [1, 2, 8])
def test_never_more_than_there_are(most: int) -> None:
    assert 0 <= chosen(settings(64, 4096, [256, 256]), most, 100) <= most


def test_convolutions_are_left_to_the_placement() -> None:
    images = small_settings("coinrun", "nature")
    assert useful_workers(images, SPEC, 8, lambda: pytest.fail("nothing is timed")) is None
