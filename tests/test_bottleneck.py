"""What a run is said to be limited by, from made-up records."""

from typing import Any

import pytest

from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.bottleneck import Circumstances, Tally, limit

SHAPE = Settings().shape  # 4 slices, 16 lanes


def record(**changes: float) -> dict[str, Any]:
    """A healthy iteration of a run on two cores."""
    return {
        "t_iter": 10.0, "cpu_percent": 195.0, "idle_share": 0.02, "idle_collect": 0.02, "idle_update": 0.02,
        "share_collect": 0.1, "share_gradients": 0.86, "share_reduce": 0.02, "share_coordinator": 0.02,
        "idle_workers": [0.02, 0.02],
    } | changes  # fmt: skip


def said(changes: dict[str, float], **circumstances: Any) -> str:
    tally = Tally()
    tally.add(record(**changes))
    around = Circumstances(SHAPE, num_workers=2, num_cores=2, is_parallel=True, checkpoint_share=0.0)
    line = limit(tally, around._replace(**circumstances))
    assert line is not None and "\n" not in line
    return line


@pytest.mark.parametrize(
    ("changes", "circumstances", "cause", "remedy"),
    [
        ({}, {}, "gradients' arithmetic (86%", "more cores"),
        ({}, {"num_cores": 8}, "gradients' arithmetic", "--num-workers 8"),
        ({"share_collect": 0.7, "share_gradients": 0.2}, {}, "environments and inference (70%", "4 workers"),
        ({"cpu_percent": 100.0}, {}, "other programs: the workers got 51%", "hardware.pinning"),
        ({"cpu_percent": 195.0}, {"num_workers": 4}, "4 workers share 2", "--num-workers 2"),
        ({"idle_collect": 0.3, "share_collect": 0.5, "share_gradients": 0.4, "cpu_percent": 290.0},
         {"num_workers": 3, "num_cores": 4}, "4 slices do not divide evenly over 3", "--num-workers 4"),
        ({"idle_collect": 0.3, "share_collect": 0.5, "share_gradients": 0.4}, {}, "collection", "--n-steps"),
        ({"idle_update": 0.2, "idle_share": 0.2, "cpu_percent": 280.0}, {"num_workers": 3, "num_cores": 4},
         "16 lanes do not divide evenly over 3", "--num-workers 4"),
        ({"idle_update": 0.2, "idle_share": 0.2}, {}, "the update", "--batch-size"),
        ({"share_coordinator": 0.4, "share_gradients": 0.4}, {}, "the coordinator, which worked alone for 40%", "--batch-size"),
        ({"share_exchange": 0.3, "share_gradients": 0.5}, {}, "the exchange with other nodes (30%", "network"),
        ({}, {"checkpoint_share": 0.3}, "checkpoints, 30%", "logging.checkpoint_interval"),
        ({}, {"is_parallel": False, "num_workers": 1}, "gradients' arithmetic", "train_parallel_timed.py"),
    ],
)  # fmt: skip
def test_the_cause_and_the_setting(
    changes: dict[str, float], circumstances: dict[str, Any], cause: str, remedy: str
) -> None:
    line = said(changes, **circumstances)
    assert cause in line and remedy in line


def test_the_largest_loss_is_named() -> None:
    assert "checkpoints" in said({"share_coordinator": 0.2}, checkpoint_share=0.3)
    assert "coordinator" in said({"share_coordinator": 0.4}, checkpoint_share=0.3)


def test_iterations_count_by_their_time() -> None:
    tally = Tally()
    tally.add(record(t_iter=1.0, share_collect=1.0))
    tally.add(record(t_iter=9.0, share_collect=0.0))
    assert tally.mean("share_collect") == pytest.approx(0.1)


def test_the_first_sample_of_the_cpu_is_not_a_measurement() -> None:
    tally = Tally()
    tally.add(record(cpu_percent=0.0))
    assert tally.cpu_percent is None
    tally.add(record())
    assert tally.cpu_percent == pytest.approx(195.0)


def test_nothing_is_said_of_no_iteration() -> None:
    assert limit(Tally(), Circumstances(SHAPE, 2, 2, True, 0.0)) is None
