"""How many workers small work is worth: a decision by size, never by chance."""

from pathlib import Path

import pytest

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.planning import MANY_CORES, MANY_CORES_WORKERS, _place
from parallel_ppo.training.worker_count import useful_workers
from tests.conftest import ROOT, command, small_settings, train_here
from tests.machine.machines import machine

SPEC = EnvSpec((17,), "float32", ActionSpec("gaussian", (6,)), 0)


def settings(num_envs: int, batch_size: int, hidden: list[int]) -> Settings:
    return small_settings(
        env__num_envs=num_envs, env__slice_envs=8, training__n_steps=128, training__batch_size=batch_size,
        training__hidden_sizes=hidden, training__kernels="torch",
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


def test_slices_of_four_give_two_workers_something_to_do() -> None:
    assert (
        chosen(small_settings(env__num_envs=8, training__n_steps=256, training__kernels="native"), 2, 500)
        == 2
    )


def test_convolutions_are_left_to_the_placement() -> None:
    images = small_settings("coinrun", "nature")
    assert useful_workers(images, SPEC, 8, lambda: pytest.fail("nothing is timed")) is None


def first_reason(num_cores: int, file: Path | None = None, policy: str = "impala") -> tuple[int, str]:
    asked = load_settings(file=file, flags={"training.policy": policy})
    spec = EnvSpec((64, 64, 3), "uint8", ActionSpec("categorical", (15,)), 0)
    placement, _ = _place(asked, "parallel", machine(num_cores), spec, 0.0)
    return placement.num_workers, placement.reasons[0]


def test_idle_cores_are_told_what_would_feed_them_and_change_nothing() -> None:
    workers, reason = first_reason(64, ROOT / "config" / "ppo_parallel.yaml")
    assert workers == 32 and "64 cores: --config config/ppo_many_cores.yaml feeds 64 workers" in reason
    assert "many_cores" not in first_reason(32, ROOT / "config" / "ppo_parallel.yaml")[1]


def test_the_settings_for_many_cores_feed_as_many_workers_as_they_say() -> None:
    many = load_settings(file=ROOT / MANY_CORES, flags={})
    assert many.sizes.num_slices >= MANY_CORES_WORKERS and many.training.batch_size >= 4096
    workers, reason = first_reason(64, ROOT / MANY_CORES)
    assert workers == MANY_CORES_WORKERS and "many_cores" not in reason


@pytest.mark.slow
@pytest.mark.multiprocess
def test_auto_starts_no_process_for_small_work_and_says_so(tmp_path: Path) -> None:
    shape = [
        "--env",
        "CartPole-v1",
        "--num-envs",
        "4",
        "--n-steps",
        "16",
        "--batch-size",
        "64",
        "--total-timesteps",
        "256",
    ]
    auto = command("train_parallel_timed.py", *shape, "--verbose", directory=tmp_path / "auto")
    assert "no worker processes: a step of CartPole-v1 takes" in auto.out
    one = train_here(tmp_path / "one", *shape)
    assert auto.summary["policy_sha256"] == one.summary["policy_sha256"]
