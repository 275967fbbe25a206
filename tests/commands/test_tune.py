"""The tuner's list and choice with made-up measurements; and one real trial."""

from pathlib import Path

import pytest

from parallel_ppo.commands import tune
from parallel_ppo.commands.tune import DEFAULT, Candidate
from parallel_ppo.exits import InputError
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.settings.schema import Settings
from tests.conftest import ROOT

FOUR = Candidate(4, "auto")


def test_the_default_is_tried_first_and_no_number_without_work() -> None:
    found = tune.candidates(Settings())
    assert found[0] == DEFAULT and len(set(found)) == len(found)
    given = tune.candidates(Settings(), [2, 3])
    assert given[1:] == [Candidate(n, pinning) for n in (2, 3) for pinning in ("auto", "none")]


def test_noise_does_not_beat_the_default() -> None:
    assert tune.choose({DEFAULT: [100.0], FOUR: [101.0]}) == DEFAULT
    assert tune.choose({DEFAULT: [100.0], FOUR: [120.0]}) == FOUR
    assert tune.choose({DEFAULT: [100.0, 110.0, 105.0], FOUR: [160.0, 90.0, 91.0]}) == DEFAULT
    assert tune.choose({DEFAULT: [], FOUR: [1.0]}) == FOUR
    assert tune.choose({DEFAULT: []}) is None


def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *flags: str, **rates: float) -> list[Candidate]:
    """The candidates that were tried, with made-up speeds by number of workers."""
    tried: list[Candidate] = []

    def trial(settings: Settings, candidate: Candidate) -> float:
        tried.append(candidate)
        if str(candidate.num_workers) not in rates:
            raise InputError("no memory")
        return rates[str(candidate.num_workers)]

    monkeypatch.setattr(tune, "trial", trial)
    output = ["--output", str(tmp_path / "tuned.yaml")]
    assert tune.main(["--env", "CartPole-v1", "--num-workers", "1,2", *output, *flags]) == 0
    return tried


def test_every_round_tries_the_whole_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = tuned(monkeypatch, tmp_path, auto=100.0, **{"2": 150.0})
    assert tried == 2 * [DEFAULT, *(Candidate(n, pinning) for n in (1, 2) for pinning in ("auto", "none"))]
    assert "fastest: 2 workers, pinning auto, 150.0 steps/s\n" in capsys.readouterr().out
    assert load_settings(file=tmp_path / "tuned.yaml", flags={}).parallel.num_workers == 2


def test_time_ends_the_trials_after_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tuned(monkeypatch, tmp_path, "--seconds", "0", auto=1.0) == [DEFAULT]


def test_a_failure_everywhere_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trial could be run: no memory"):
        tuned(monkeypatch, tmp_path)
    assert not (tmp_path / "tuned.yaml").exists()


def test_the_yaml_loads_again_and_learns_the_same(tmp_path: Path) -> None:
    settings = load_settings(file=None, flags={})
    path = tmp_path / "tuned.yaml"
    path.write_text(tune.tuned_yaml(settings, Candidate(3, "none"), 123.4))
    loaded = load_settings(file=path, flags={})
    assert (loaded.parallel.num_workers, loaded.hardware.pinning) == (3, "none")
    assert learning_settings(loaded) == learning_settings(settings)


def test_a_trial_keeps_the_proportion_of_collecting_and_learning() -> None:
    full = load_settings(file=None, flags={})
    short = tune.shortened(full)
    assert (short.sizes.num_minibatches, short.sizes.num_epochs) == (1, full.sizes.num_epochs)
    assert short.sizes.microbatch_sizes == full.sizes.microbatch_sizes


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "TRIAL_SECONDS", 0.3)
    settings = load_settings(file=ROOT / "config" / "cartpole.yaml", flags={})
    assert tune.trial(settings, Candidate(1, "none")) > 0
