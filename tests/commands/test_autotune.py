"""The tuner's search, with made-up measurements; and one real trial."""

import pytest

from parallel_ppo.commands import tune as autotune
from parallel_ppo.commands.tune import Candidate, Trial
from parallel_ppo.exits import InputError
from parallel_ppo.machine.iteration_model import Iteration, Pieces
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.learning import learning_settings
from tests.conftest import ROOT
from tests.machine.machines import machine

DEFAULT, FOUR = Candidate(), Candidate(4)
ON_TWO_CORES = Iteration(1.0, 1.0, 1.0, Pieces(4, 16, 16), workers=2, cores=2)


def search(rates: dict[Candidate, float], seconds: int = 100) -> list[Trial]:
    clock = iter(range(1000))
    return autotune.search(
        machine(2),
        lambda candidate: Trial(candidate, rates.get(candidate), ON_TWO_CORES),
        lambda: next(clock) >= seconds,
    )


def test_numbers_then_pinning_from_the_best_so_far() -> None:
    trials = search({DEFAULT: 100, FOUR: 150, FOUR._replace(pinning="none"): 180})
    assert [trial.candidate for trial in trials] == [DEFAULT, FOUR, Candidate(4, "none")]
    assert autotune.choose(trials).candidate == Candidate(4, "none")


def test_what_the_model_rules_out_is_not_tried() -> None:
    assert autotune.numbers_to_try(ON_TWO_CORES, machine(2)) == [4], "1 would be half as fast"
    mostly_alone = ON_TWO_CORES._replace(coordinator=20.0)
    assert autotune.numbers_to_try(mostly_alone, machine(2)) == [4, 1]
    few_pieces = ON_TWO_CORES._replace(pieces=Pieces(2, 2, 16))
    assert autotune.numbers_to_try(few_pieces, machine(2)) == []
    assert autotune.numbers_to_try(None, machine(2)) == [1, 2, 4]


def test_noise_does_not_beat_the_default() -> None:
    assert autotune.choose(search({DEFAULT: 100, FOUR: 101})).candidate == DEFAULT


def test_a_lucky_trial_is_not_enough() -> None:
    again = {DEFAULT: iter([105.0, 104.0]), FOUR: iter([90.0, 91.0])}
    asked = []

    def measure(candidate: Candidate) -> Trial:
        asked.append(candidate)
        return Trial(candidate, next(again[candidate]))

    trials = autotune.confirm([Trial(DEFAULT, 100.0), Trial(FOUR, 120.0)], measure, lambda: False)
    assert asked == [DEFAULT, FOUR, DEFAULT, FOUR]
    assert [trial.steps_per_second for trial in trials] == [104.0, 91.0]
    assert autotune.choose(trials).candidate == DEFAULT


def test_a_default_that_wins_is_not_measured_again() -> None:
    trials = [Trial(DEFAULT, 100.0), Trial(FOUR, 50.0)]
    assert autotune.confirm(trials, lambda candidate: pytest.fail("asked again"), lambda: False) == trials


def test_time_ends_the_search_after_the_default() -> None:
    assert len(search({DEFAULT: 1}, seconds=0)) == 1
    assert len(search({DEFAULT: 1}, seconds=1)) == 2


def test_a_failing_default_does_not_stop_it_but_failing_everywhere_does() -> None:
    assert autotune.choose(search({FOUR: 5})).candidate == FOUR
    with pytest.raises(InputError, match="no trial"):
        autotune.choose(search({}))


def test_the_yaml_loads_again_and_learns_the_same(tmp_path) -> None:
    settings = load_settings(file=None, flags={})
    path = tmp_path / "tuned.yaml"
    path.write_text(autotune.tuned_yaml(settings, Trial(Candidate(3, "none"), 123.4)))
    loaded = load_settings(file=path, flags={})
    assert (loaded.parallel.num_workers, loaded.hardware.pinning) == (3, "none")
    assert learning_settings(loaded) == learning_settings(settings)


def test_a_full_iteration_follows_from_short_ones() -> None:
    full = load_settings(file=None, flags={})
    short = autotune.shortened(full)
    assert (short.shape.num_steps, short.shape.num_minibatches) == (32, 1)
    assert short.shape.lane_sizes == full.shape.lane_sizes
    record = {
        "t_iter": 1.6,
        "t_rollout": 0.5,
        "t_learn": 1.0,
        "share_gradients": 0.5,
        "share_reduce": 0.0,
        "num_workers": 2,
    }
    found = autotune.full_iteration([record], short, full, machine(2))
    assert (found.collect, found.learn, found.total) == pytest.approx(
        (0.5 * 4, 0.8 * 16, 0.5 * 4 + 1.0 * 16 + 0.1)
    )


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "TRIAL_SECONDS", 0.3)
    settings = load_settings(file=ROOT / "config" / "cartpole.yaml", flags={})
    trial = autotune.run_trial(settings, Candidate(1, "none"), read_machine())
    assert trial.steps_per_second is not None and trial.steps_per_second > 0, trial.problem
