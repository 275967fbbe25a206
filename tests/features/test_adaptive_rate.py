"""The KL-adaptive learning rate: the rule of rsl_rl, the same in C and in Python."""

import functools

import pytest

from parallel_ppo.algorithms.algorithm import Schedules, Statistics
from parallel_ppo.cluster.cluster import Cluster
from parallel_ppo.exits import InputError
from parallel_ppo.features.adaptive_rate import adapted
from parallel_ppo.records.timeline import Timeline
from parallel_ppo.training.update import learn
from tests.conftest import small_settings
from tests.training.test_update import collected

ADAPTIVE = {"training__learning_rate_schedule": "adaptive"}


def test_the_rate_follows_the_divergence_within_its_bounds() -> None:
    training = small_settings(**ADAPTIVE, training__adaptive_max=1e-3).training

    def rate_after(*divergences: float) -> float:
        return functools.reduce(functools.partial(adapted, training), divergences, 5e-4)

    assert rate_after(0.021) == 5e-4 / 1.5 and rate_after(0.004) == 5e-4 * 1.5
    assert rate_after(0.01, 0.005, 0.02, 0.0) == 5e-4
    assert rate_after(*[0.001] * 9) == 1e-3 and rate_after(*[1.0] * 20) == 1e-5


@pytest.mark.parametrize("by_workers", [True, False])
def test_every_step_has_the_rate_of_the_rule(by_workers: bool) -> None:
    """Computed in C, or by the coordinator where there is no C library."""
    settings = small_settings(**ADAPTIVE, training__n_epochs=4, training__adaptive_kl=1e-3)
    state, pool, _ = collected(settings)
    if not by_workers:
        pool.steps = None
    learn(state, pool, Cluster(settings.sizes), Schedules(1e-4, 0.2), Timeline())
    rates, expected = [], [5e-4]  # of the settings; those of the schedules do not count
    for *sums, _, _, rate, _ in state.memory.step_results.tolist():
        divergence = Statistics(*sums).approx_kl / settings.sizes.batch_size
        if rates:
            expected.append(adapted(settings.training, expected[-1], divergence))
        rates.append(rate)
    assert rates == expected and len(set(rates)) > 3
    assert state.adaptive is not None and state.adaptive.rate == rates[-1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"training__algorithm": "impala", "training__batch_size": 256, "training__n_epochs": 1},
            "training.learning_rate_schedule: impala takes one step",
        ),
        ({"training__learning_rate_warmup": 100}, "training.learning_rate_warmup: cannot be combined"),
        ({"training__learning_rate": 0.1}, "training.learning_rate: 0.1 is not between"),
    ],
)
def test_settings_that_cannot_adapt_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        small_settings(**(ADAPTIVE | changes))
