"""What a run is said to be limited by: from records that real runs left, and from made-up ones."""

import math
from typing import Any

import pytest

from parallel_ppo.machine.iteration_model import Iteration, Pieces, busiest
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.bottleneck import Tally, limit

SETTINGS = Settings()  # 4 slices, 16 microbatches


def record(**changes: float) -> dict[str, Any]:
    """A healthy iteration of a run on two cores."""
    return {
        "t_iter": 10.0, "cpu_percent": 195.0, "cpu_wait_percent": 1.0,
        "idle_share": 0.02, "idle_collect": 0.02, "idle_update": 0.02,
        "share_collect": 0.1, "share_gradients": 0.86, "share_reduce": 0.02, "share_coordinator": 0.02,
        "share_exchange": 0.0, "idle_workers": [0.02, 0.02],
    } | changes  # fmt: skip


def said(changes: dict[str, float], **circumstances: Any) -> str:
    """After 100 iterations."""
    tally = Tally()
    for _ in range(100):
        tally.add(record(**changes))
    given = {
        "num_slices": SETTINGS.sizes.num_slices,
        "workers": 2,
        "cores": 2,
        "checkpoint_share": 0.0,
    }
    line = limit(tally, SETTINGS, **given | circumstances)  # type: ignore[arg-type]
    assert line is not None and "\n" not in line
    return line


COLLECTS = {"share_collect": 0.84, "share_gradients": 0.12}


@pytest.mark.parametrize(
    ("changes", "circumstances", "cause", "remedy"),
    [
        ({}, {}, "arithmetic of the gradients (88% of the time), with all cores busy",
        "more cores would help (up to 16 workers)"),
        ({}, {"cores": 8}, "arithmetic of the gradients", "--num-workers 8 should make an iteration"),
        (COLLECTS, {}, "environments and inference (84%", "up to 4 workers"),
        ({"cpu_percent": 100.0, "cpu_wait_percent": 95.0}, {},
        "other programs, which ran on this run's cores for 48%", "hardware.pinning"),
        (COLLECTS | {"idle_collect": 0.3, "idle_share": 0.3, "cpu_percent": 210.0}, {"workers": 3,
        "cores": 4},
         "nothing to do for 30%", "--num-workers 4"),
        ({"idle_update": 0.2, "idle_share": 0.2, "cpu_percent": 240.0}, {"workers": 3, "cores": 3},
         "nothing to do for 20%", "its 16 pieces do not divide evenly over 3 workers, but no other"),
        ({"share_coordinator": 0.5, "share_gradients": 0.38}, {},
        "the coordinator, which worked alone for 50%", "--batch-size"),
        ({"share_exchange": 0.5, "share_gradients": 0.36}, {}, "the exchange with other nodes (50%",
        "network"),
        ({}, {"checkpoint_share": 0.5}, "checkpoints (50%", "logging.checkpoint_interval"),
        ({}, {"checkpoint_share": 0.6, "workers": 0}, "checkpoints (60%", "logging.checkpoint_interval"),
        ({}, {"num_slices": 2, "workers": 1}, "arithmetic", "--num-workers 2 should"),
    ],
)  # fmt: skip
def test_the_cause_and_the_setting(
    changes: dict[str, float], circumstances: dict[str, Any], cause: str, remedy: str
) -> None:
    line = said(changes, **circumstances)
    assert cause in line and remedy in line, line


def test_a_small_part_is_not_the_limit() -> None:
    assert "environments" in said(COLLECTS, checkpoint_share=0.05)
    assert "arithmetic" in said({"share_coordinator": 0.2, "share_gradients": 0.7})


# Recorded: 32 environments that sleep for 2 ms a step, 4 slices, 2 cores; with 2 workers and with 4.
SLEEPING = {
    "t_iter": 1.2189, "share_collect": 0.9757, "share_gradients": 0.0188, "share_reduce": 0.0015,
    "share_coordinator": 0.004,
    "idle_share": 0.0169, "idle_collect": 0.0024, "idle_update": 0.5953, "cpu_percent": 22.2,
    "cpu_wait_percent": 6.2,
}  # fmt: skip
SLEEPING_IN_4 = {
    "t_iter": 0.6606, "share_collect": 0.9376, "share_gradients": 0.0446, "share_reduce": 0.01,
    "share_coordinator": 0.0078,
    "idle_share": 0.0632, "idle_collect": 0.0146, "idle_update": 0.7918, "cpu_percent": 34.1,
    "cpu_wait_percent": 20.3,
}  # fmt: skip


def test_a_sleeping_environment_is_not_busy_cores_and_the_advice_came_true() -> None:
    line = said(SLEEPING)
    assert "the environments wait, and collecting needs a core for 13% of the time" in line
    assert "--num-workers 4 should make an iteration 49% shorter" in line
    assert 1 - SLEEPING_IN_4["t_iter"] / SLEEPING["t_iter"] == pytest.approx(0.49, abs=0.05)
    assert "--num-workers" not in said(SLEEPING_IN_4, workers=4), "2 would be half as fast"


def test_many_workers_on_few_cores_are_not_told_to_be_fewer() -> None:
    assert "--num-workers" not in said({"cpu_wait_percent": 190.0}, workers=4)


IDLE = {"idle_collect": 0.4, "idle_update": 0.4, "idle_share": 0.4, "cpu_percent": 60.0}


def test_one_worker_is_no_plural() -> None:
    idle = IDLE | {"cpu_percent": 70.0}
    for part in ({}, COLLECTS):
        assert "the worker had nothing to do for 40%" in said(part | idle, workers=1, cores=1)
        assert "workers" not in said(part | idle, workers=1, cores=1).partition(";")[0]


def test_time_that_the_host_gave_to_others_is_neither_an_environment_that_waits_nor_a_busy_core() -> None:
    stolen = COLLECTS | {"cpu_percent": 115.0, "cpu_steal_percent": 40.0}
    assert "the host of this virtual machine, which gave 40% of the CPU time to others" in said(stolen)
    assert "the environments wait" in said(stolen | {"cpu_steal_percent": 0.0})
    assert "host" not in said({"cpu_steal_percent": 2.0})


def advice(*records: dict[str, Any], workers: int = 2) -> str | None:
    tally = Tally()
    for one in records:
        tally.add(one)
    num_slices = SETTINGS.sizes.num_slices
    return limit(tally, SETTINGS, num_slices=num_slices, workers=workers, cores=2, checkpoint_share=0.0)


def test_no_advice_before_a_minute_of_training_or_without_workers() -> None:
    assert advice() is None
    assert advice(record(t_iter=59.0)) is None
    assert advice(record(t_iter=30.0), record(t_iter=31.0)) is not None
    assert advice(record(t_iter=100.0), workers=0) is None


def test_a_starved_run_gets_no_advice_about_its_workers() -> None:
    line = advice(
        record(t_iter=100.0, cpu_percent=150.0, cpu_wait_percent=40.0, share_collect=0.5, idle_collect=0.4)
    )
    assert line is not None and line.startswith("other programs, which ran on this run's cores for 20%")
    assert "--num-workers" not in line


def test_where_nothing_was_measured_nothing_is_said_of_cores() -> None:
    for missing in ({"cpu_percent": 0.0}, {"cpu_wait_percent": None, "cpu_percent": 60.0}):
        line = said(COLLECTS | missing)
        assert "busy" not in line and "wait" not in line, line


def test_iterations_count_by_their_time() -> None:
    tally = Tally()
    tally.add(record(t_iter=1.0, share_collect=1.0))
    tally.add(record(t_iter=9.0, share_collect=0.0))
    assert tally.mean("share_collect") == pytest.approx(0.1)


def test_the_first_sample_of_the_cpu_is_not_a_measurement() -> None:
    tally = Tally()
    tally.add(record(cpu_percent=0.0))
    assert math.isnan(tally.mean("cpu_percent"))
    tally.add(record())
    assert tally.mean("cpu_percent") == pytest.approx(195.0)


def measured(**changes: Any) -> Iteration:
    given = {"collect": 4.0, "learn": 5.0, "coordinator": 1.0, "pieces": Pieces(4, 16, 16),
             "workers": 1, "cores": 128}  # fmt: skip
    return Iteration(**given | changes)


def test_work_in_pieces_waits_for_the_busiest_worker() -> None:
    assert [busiest(4, workers) for workers in (1, 3, 100)] == [1.0, 0.5, 0.25]
    assert measured().seconds(1) == pytest.approx(10.0)
    assert measured().seconds(2) == pytest.approx(1 + 2 + 2.5)
    assert measured().seconds(128) == pytest.approx(1 + 1 + 5 / 16)
    assert measured(cores=2).seconds(4) == measured(cores=2).seconds(2)
    assert measured(workers=3, cores=3).best() == 3


def test_who_sleeps_leaves_the_core_to_others() -> None:
    sleeping = measured(collect=8.0, learn=0.1, coordinator=0.1, workers=2, cores=2, needs_core=0.1)
    assert sleeping.best() == 4
    assert sleeping.seconds(4) == pytest.approx(4.2)
    computing = sleeping._replace(needs_core=1.0)
    assert computing.best() == 2 and computing.gain(4) == pytest.approx(1.0)


def test_workers_pay_for_messages() -> None:
    small = measured(collect=1e-3, learn=1e-3, coordinator=0.0, workers=0)
    assert small.gain(small.best()) < 1
    assert measured(workers=0).seconds(1) > measured(workers=0).total
