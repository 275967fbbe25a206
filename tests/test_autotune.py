"""The tuner's search, with made-up measurements; and one real trial."""

import sys

import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.machine.resources import describe as machine_from
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings, learning_settings
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import autotune
from autotune import Candidate, Trial

DEFAULT = Candidate(2, "auto", 8, 64)


def search(rates: dict[Candidate, float], tried: list, seconds: int = 100) -> list[Trial]:
    clock = iter(range(1000))
    return autotune.search(
        DEFAULT,
        tried,
        lambda candidate: Trial(candidate, rates.get(candidate)),
        lambda: next(clock) >= seconds,
    )


def test_each_field_is_tried_from_the_best_so_far() -> None:
    four = DEFAULT._replace(num_workers=4)
    free = four._replace(pinning="none")
    trials = search({DEFAULT: 100, four: 150, free: 180}, [("num_workers", [1, 4]), ("pinning", ["none"])])
    assert [trial.candidate for trial in trials] == [DEFAULT, DEFAULT._replace(num_workers=1), four, free]
    assert autotune.choose(trials).candidate == free


def test_noise_does_not_beat_the_default() -> None:
    trials = search({DEFAULT: 100, DEFAULT._replace(pinning="none"): 101}, [("pinning", ["none"])])
    assert autotune.choose(trials).candidate == DEFAULT


def test_a_lucky_trial_is_not_enough() -> None:
    four = DEFAULT._replace(num_workers=4)
    again = {DEFAULT: iter([105.0, 104.0]), four: iter([90.0, 91.0])}
    asked = []

    def measure(candidate: Candidate) -> Trial:
        asked.append(candidate)
        return Trial(candidate, next(again[candidate]))

    trials = autotune.confirm([Trial(DEFAULT, 100.0), Trial(four, 120.0)], measure, lambda: False)
    assert asked == [DEFAULT, four, DEFAULT, four]
    assert [trial.steps_per_second for trial in trials] == [104.0, 91.0]
    assert autotune.choose(trials).candidate == DEFAULT


def test_a_default_that_wins_is_not_measured_again() -> None:
    trials = [Trial(DEFAULT, 100.0), Trial(DEFAULT._replace(num_workers=1), 50.0)]
    assert autotune.confirm(trials, lambda candidate: pytest.fail("asked again"), lambda: False) == trials


def test_time_ends_the_search_after_the_default() -> None:
    assert len(search({DEFAULT: 1}, [("num_workers", [1, 3, 4])], seconds=0)) == 1
    assert len(search({DEFAULT: 1}, [("num_workers", [1, 3, 4])], seconds=2)) == 3


def test_a_failing_default_does_not_stop_it_but_failing_everywhere_does() -> None:
    other = DEFAULT._replace(num_workers=1)
    assert autotune.choose(search({other: 5}, [("num_workers", [1])])).candidate == other
    with pytest.raises(InputError, match="no trial"):
        autotune.choose(search({}, [("num_workers", [1])]))


def test_learning_settings_are_left_alone_unless_allowed() -> None:
    settings, machine = Settings(), machine_from("8")
    default = autotune.default_candidate(settings, machine)
    assert default == Candidate(8, "auto", 8, 64)
    plain = autotune.dimensions(default, settings, machine, False)
    assert [field for field, _ in plain] == ["num_workers", "pinning"]
    for field, values in autotune.dimensions(default, settings, machine, True):
        for value in values:
            changed = autotune.applied(settings, default._replace(**{field: value}))
            is_learning = field in ("slice_envs", "lane_samples")
            assert (learning_settings(changed) != learning_settings(settings)) == is_learning, (field, value)


def test_the_yaml_loads_again(tmp_path) -> None:
    settings = load_settings(file=None, flags={})
    trial = Trial(DEFAULT._replace(num_workers=3, pinning="none"), 123.4)
    path = tmp_path / "tuned.yaml"
    path.write_text(autotune.tuned_yaml(settings, trial, DEFAULT))
    loaded = load_settings(file=path, flags={})
    assert (loaded.parallel.num_workers, loaded.hardware.pinning) == (3, "none")
    assert learning_settings(loaded) == learning_settings(settings)
    assert "same bits" in path.read_text()


def test_a_full_iteration_follows_from_a_short_one() -> None:
    full = load_settings(file=None, flags={})
    short = autotune.shortened(full)
    assert (short.shape.num_steps, short.shape.num_minibatches, short.shape.lane_sizes) == (
        32,
        1,
        full.shape.lane_sizes,
    )
    record = {"t_iter": 1.6, "t_rollout": 0.5, "t_learn": 1.0}
    assert autotune.full_rate(record, short, full) == pytest.approx(4096 / (0.5 * 4 + 1.0 * 16 + 0.1))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "TRIAL_SECONDS", 0.3)
    settings = load_settings(file=ROOT / "config" / "cartpole.yaml", flags={})
    trial = autotune.run_trial(settings, Candidate(1, "none", 8, 256))
    assert trial.steps_per_second is not None and trial.steps_per_second > 0, trial.problem
