"""When a run stops, what it says of its end, and that a schedule which ends first is told."""

import pytest

from parallel_ppo.training import budget as budgets
from parallel_ppo.training.budget import Budget, schedule_warnings
from parallel_ppo.training.state import Counters
from tests.conftest import small_settings


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budgets, "time", clock)
    return clock


def run(budget: Budget, clock: Clock, counters: Counters, seconds: float, steps: int = 256) -> str | None:
    """One iteration, and whether the budget is spent after it."""
    clock.now += seconds
    counters.iteration, counters.env_steps = counters.iteration + 1, counters.env_steps + steps
    counters.wall_time = budget.elapsed()
    return budget.spent(counters)


@pytest.mark.parametrize(("duration", "iterations"), [("100s", 2), ("101s", 3), ("120s", 3), ("1s", 1)])
def test_an_iteration_that_would_end_further_from_the_budget_is_not_started(
    clock: Clock, duration: str, iterations: int
) -> None:
    """Each takes 40 s."""
    budget, counters = Budget(small_settings(training__duration=duration).training), Counters()
    budget.start(counters)
    assert budget.spent(counters) is None, "the first one always"
    while run(budget, clock, counters, 40) is None:
        pass
    assert counters.iteration == iterations


def test_the_end_is_known_from_the_first_moment(clock: Clock) -> None:
    budget, counters = Budget(small_settings(training__duration=0.1).training), Counters()
    budget.start(counters)
    assert budget.progress(counters) == (0.0, 360.0)
    clock.now += 90
    assert budget.progress(counters) == (0.25, 270.0), "within the first iteration too"


def test_after_a_resume_the_present_speed_counts(clock: Clock) -> None:
    """An earlier session took 1,000 s for 10 iterations; this one takes 10 s for each."""
    budget = Budget(small_settings(training__total_timesteps=256 * 30).training)
    counters = Counters(iteration=10, env_steps=2560, wall_time=1000.0)
    budget.start(counters)
    assert budget.spent(counters) is None
    assert budget.progress(counters)[1] == 2000.0, "what is known before the first iteration"
    assert run(budget, clock, counters, 10) is None
    assert budget.progress(counters)[1] == pytest.approx(190.0)
    clock.now += 4
    assert budget.progress(counters)[1] == pytest.approx(186.0)


def test_a_schedule_that_ends_before_the_run_is_told() -> None:
    linear = {"training__learning_rate_schedule": "linear", "training__schedule_steps": 1000}
    training = small_settings(**linear, training__total_timesteps=2000).training
    (line,) = schedule_warnings(training, Counters(env_steps=1000))
    assert "training.learning_rate has been 0 since 1,000 steps" in line
    assert "--set training.schedule_steps=2000" in line
    (line,) = schedule_warnings(training, Counters())
    assert "will be 0 after 1,000 steps" in line
    training = small_settings(**linear, training__total_timesteps=1000).training
    assert schedule_warnings(training, Counters(env_steps=999)) == []
    assert schedule_warnings(small_settings(training__total_timesteps=9).training, Counters()) == []
