import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import trim_mean

from parallel_ppo.reports import statistics
from parallel_ppo.reports.statistics import Timing


def slow_smooth(values, window):
    result = []
    for end in range(len(values)):
        kept = [value for value in values[max(0, end - window + 1) : end + 1] if np.isfinite(value)]
        result.append(sum(kept) / len(kept) if kept else np.nan)
    return result


@pytest.mark.parametrize("window", [1, 3, 50])
def test_smoothing_equals_its_slow_twin(window):
    values = np.random.default_rng(0).normal(size=40)
    values[[0, 1, 7, 8, 9, 10, 30]] = np.nan
    np.testing.assert_allclose(statistics.smooth(values, window), slow_smooth(values, window))


def test_recent_mean_equals_its_slow_twin():
    generator = np.random.default_rng(1)
    positions = generator.integers(1, 20, size=300)
    values = generator.normal(size=300)
    at = np.arange(0, 25)
    order = sorted(range(300), key=lambda index: positions[index])
    slow = []
    for place in at:
        seen = [values[index] for index in order if positions[index] <= place]
        slow.append(np.mean(seen[-50:]) if len(seen) >= 20 else np.nan)
    np.testing.assert_allclose(statistics.recent_mean(positions, values, at, window=50, minimum=20), slow)


def test_recent_mean_of_fewer_episodes_than_the_minimum():
    positions, values, at = np.array([2, 3]), np.array([4.0, 6.0]), np.array([1, 2, 3])
    result = statistics.recent_mean(positions, values, at, window=100, minimum=2)
    np.testing.assert_allclose(result, [np.nan, np.nan, 5.0])
    assert np.isnan(statistics.recent_mean(positions, values, at, window=100, minimum=20)).all()


def test_iqm_cuts_a_quarter_at_either_end():
    assert statistics.iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == pytest.approx(np.mean([2, 3, 4, 5]))
    values = np.random.default_rng(0).normal(size=31)
    assert statistics.iqm(values) == pytest.approx(trim_mean(values, 0.25))
    assert statistics.iqm(np.array([1.0, 2.0, 6.0])) == pytest.approx(3.0), "too few to cut"


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    generator = np.random.default_rng(3)
    hits = 0
    for trial in range(100):
        estimate = statistics.bootstrap(generator.normal(5, 2, size=40), seed=trial)
        hits += estimate.low <= 5 <= estimate.high
    assert 86 <= hits <= 100


def test_the_bootstrap_is_deterministic_and_needs_two_values():
    values = [1.0, 2.0, 4.0, float("nan")]
    assert statistics.bootstrap(values) == statistics.bootstrap(values)
    assert statistics.bootstrap(values).value == pytest.approx(7 / 3)
    assert np.isnan(statistics.bootstrap([3.0]).low)
    assert np.isnan(statistics.bootstrap([3.0] * 9).low), "an interval without width would be a claim"
    assert np.isnan(statistics.bootstrap([]).value)


def test_rates_have_an_interval_even_where_all_succeed():
    estimate = statistics.rate(60, 60)
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(0.9398, abs=1e-4)
    half = statistics.rate(5, 10)
    assert (half.low, half.high) == pytest.approx((0.2366, 0.7634), abs=1e-4), "Wilson's, by hand"
    assert np.isnan(statistics.rate(0, 0).value)


def test_the_difference_of_rates_is_newcombes():
    estimate = statistics.difference_of_rates(statistics.rate(56, 70), statistics.rate(48, 80))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    same = statistics.difference_of_rates(statistics.rate(10, 10), statistics.rate(10, 10))
    assert same.low < 0 < same.high


def test_the_stratified_bootstrap_keeps_every_game():
    certain = [np.zeros(4), np.ones(4)]
    estimate = statistics.stratified_bootstrap(statistics.iqm_score, certain)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)
    for few in ([np.array([0.1])] * 6, [np.array([0.1, 0.2])] * 2):
        assert np.isnan(statistics.stratified_bootstrap(statistics.iqm_score, few).low)
    assert np.isnan(statistics.stratified_bootstrap(statistics.iqm_score, []).value)


AGGREGATES = ("iqm_score", "probability_of_improvement")


@pytest.fixture(scope="module")
def recorded():
    """What rliable 1.2.0 answered, with the runs that its bootstrap drew."""
    return json.loads((Path(__file__).parent / "data" / "rliable.json").read_text())


def ours(name, recorded):
    """Our function, its scores, and rliable's draws as `percentiles` takes them: [resamples, runs] for
    each game.
    """
    function = getattr(statistics, name)
    pair = name == "probability_of_improvement"
    several = [list(np.array(recorded[key]).T) for key in ("x", "y")[: 2 if pair else 1]]
    draws = recorded["pair_picks" if pair else "picks"]
    picks = [
        list(np.array([draw[index] for draw in draws]).transpose(2, 0, 1)) for index in range(len(several))
    ]
    return function, several, picks


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_and_their_intervals_equal_rliables(name, recorded):
    function, several, picks = ours(name, recorded)
    answer = recorded["answers"][name]
    low, high = statistics.percentiles(function, several, picks)
    found = (float(function(*several)), low, high)
    np.testing.assert_allclose(
        found, np.ravel([answer[key] for key in ("value", "low", "high")]), rtol=0, atol=1e-9
    )
    estimate = statistics.stratified_bootstrap(function, *several)
    assert estimate.low <= estimate.value <= estimate.high, "with draws of our own"


def make_timing(count, seconds, noise, seed):
    generator = np.random.default_rng(seed)
    return Timing(np.full(count, 100.0), seconds * (1 + noise * generator.standard_normal(count)))


def test_speedup_is_a_ratio_of_throughputs_inside_its_interval():
    slow, fast = [make_timing(50, 2.0, 0.05, 1)], [make_timing(80, 1.0, 0.05, 2)]
    estimate = statistics.speedup(slow, fast)
    by_hand = (8000 / fast[0].seconds.sum()) / (5000 / slow[0].seconds.sum())
    assert estimate.value == pytest.approx(by_hand)
    assert estimate.low < by_hand < estimate.high
    assert 0.01 < estimate.high - estimate.low < 0.15
    for few in (0, 1, 4):
        assert np.isnan(statistics.speedup([make_timing(few, 2.0, 0, 1)], fast).low), "too few"


def test_different_runs_widen_the_interval_of_throughput():
    one = [make_timing(50, 1.0, 0.01, 1)]
    several = [make_timing(50, seconds, 0.01, 1) for seconds in (0.8, 1.0, 1.2)]
    width = [
        estimate.high - estimate.low
        for estimate in (statistics.throughput(one), statistics.throughput(several))
    ]
    assert width[1] > 5 * width[0]


def test_a_slow_stretch_widens_the_interval():
    """Independent resampling would call a long slow stretch noise that averages out."""
    seconds = np.where(np.arange(64) // 16 % 2 == 0, 1.0, 1.5)
    shuffled = np.random.default_rng(0).permutation(seconds)
    blocks, mixed = (
        statistics.throughput([Timing(np.full(64, 100.0), each)]) for each in (seconds, shuffled)
    )
    assert blocks.high - blocks.low > 1.4 * (mixed.high - mixed.low)


def test_mean_curve_equals_its_slow_twin():
    x = [np.array([0.0, 10.0]), np.array([2.0, 6.0, 12.0])]
    y = [np.array([0.0, 10.0]), np.array([np.nan, 1.0, 4.0])]
    grid, mean, low, _ = statistics.mean_curve(x, y, points=5)
    assert (grid[0], grid[-1]) == (6.0, 10.0)
    slow = [(position + (1 + (position - 6) / 2)) / 2 for position in grid]
    np.testing.assert_allclose(mean, slow)
    assert np.isnan(low).all(), "two runs have no interval"
    _, mean, low, high = statistics.mean_curve([x[0]] * 5, [y[0] + seed for seed in range(5)])
    assert (low < mean).all() and (mean < high).all()


def test_below_five_seeds_there_is_no_interval():
    few, many = statistics.over_seeds([1.0, 2.0, 4.0, float("nan")]), statistics.over_seeds(list(range(5)))
    assert few.value == pytest.approx(7 / 3) and np.isnan(few.low) and few.seeds == (1.0, 2.0, 4.0)
    assert many.low < many.value == 2.0 < many.high
    assert np.isnan(statistics.over_seeds([]).value)


def test_mean_curve_of_nothing_and_of_one():
    assert len(statistics.mean_curve([np.array([1.0])], [np.array([np.nan])])[0]) == 0
    x, mean, low, _ = statistics.mean_curve([np.array([1.0, 2.0])], [np.array([3.0, 4.0])])
    np.testing.assert_allclose((x, mean), ([1, 2], [3, 4]))
    assert np.isnan(low).all()
