import json
import math
import re
from pathlib import Path

import pytest
import yaml
from matplotlib.text import Text
from run_writer import write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports import compare_command
from parallel_ppo.reports.compare_command import main, write_comparison
from parallel_ppo.reports.comparison import compare, default_thresholds
from parallel_ppo.reports.comparison_report import comparison_figure, group_rows, headline, text_report
from parallel_ppo.reports.groups import Group
from parallel_ppo.reports.runs import load_run, one_line
from parallel_ppo.reports.theme import figure_bytes


def group(label, *paths):
    return Group(label, tuple(load_run(path) for path in paths))


def test_speedup_efficiency_and_equal_bits(twins):
    comparison = compare(twins)
    pair = comparison.pairs[0]
    exact = 8.0 / (1.0 + 0.4 + 5.6 / 2)
    assert pair.speedup.value == pytest.approx(exact, rel=0.02)
    assert pair.speedup.low < pair.speedup.value < pair.speedup.high
    assert pair.efficiency.value == pytest.approx(pair.speedup.value / 2)
    assert pair.identity.verdict == "identical"
    assert pair.identity.compared == 24
    assert comparison.warnings == []
    assert "same bits" in headline(comparison)


def test_time_to_return_falls_with_the_speed(twins):
    comparison = compare(twins, thresholds=[2.0, 1000.0])
    slow, fast = (result.seconds_to_return for result in comparison.groups)
    assert fast["2"] < slow["2"]
    assert math.isnan(fast["1000"])
    assert "not reached" in text_report(comparison)


def test_chosen_thresholds_are_reached_by_all(twins):
    chosen = default_thresholds(twins)
    assert len(chosen) == 3
    for result in compare(twins).groups:
        assert all(math.isfinite(seconds) for seconds in result.seconds_to_return.values())


def test_efficiency_counts_the_threads_of_the_baseline(tmp_path):
    baseline = write_run(tmp_path / "s", kind="sequential", workers=1, threads=2)
    comparison = compare(
        [group("sequential", baseline), group("parallel", write_run(tmp_path / "p", workers=2))]
    )
    assert comparison.pairs[0].efficiency.value == pytest.approx(comparison.pairs[0].speedup.value)


def test_equal_hashes_are_the_proof_that_learning_was_the_same(tmp_path):
    """Threads and commits that differ are then no reason for a warning; another machine still is: of the
    speed."""
    for machine, expected in (("Test CPU", []), ("Other", ["other machine"])):
        one = write_run(tmp_path / f"s{machine}", kind="sequential", workers=1, threads=2, commit="old")
        two = write_run(tmp_path / f"p{machine}", machine=machine)
        warnings = compare([group("sequential", one), group("parallel", two)]).warnings
        assert [line.split(":")[0] for line in warnings] == expected
    other = write_run(tmp_path / "o", learning="other")
    warnings = compare([group("sequential", one), group("parallel", other)]).warnings
    assert any("num_threads" in line for line in warnings)
    assert any("other commit" in line for line in warnings)


def test_other_bits_are_found_where_they_begin(tmp_path):
    first, second = write_run(tmp_path / "a", kind="sequential", workers=1), write_run(tmp_path / "b")
    rows = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    for row in rows[4:]:
        row["policy_sha256"] = "f" * 64
    (second / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    identity = compare([group("a", first), group("b", second)]).pairs[0].identity
    assert identity.verdict == "different"
    assert f"step {5 * 2048:,}" in identity.sentence
    assert "breaks the contract" in identity.sentence


def test_other_bits_that_have_a_reason_are_not_called_a_fault(tmp_path):
    threaded = write_run(tmp_path / "a", kind="sequential", workers=1, learning="threaded", threads=2)
    identity = compare([group("a", threaded), group("b", write_run(tmp_path / "b"))]).pairs[0].identity
    assert identity.sentence == "no: seed 1 differs from step 2,048 on, as it may: other arithmetic"


def test_curiosity_is_a_reason_for_other_parameters(tmp_path):
    plain, curious = write_run(tmp_path / "a"), write_run(tmp_path / "b", learning="curious")
    with open(curious / "config.yaml", "a") as file:
        file.write("curiosity: {kind: rnd}\n")
    comparison = compare([group("a", plain), group("b", curious)])
    assert comparison.pairs[0].identity.sentence.endswith("as it may: other setting")
    assert any("(curiosity.kind): a none, b rnd" in line for line in comparison.warnings)


def test_bits_of_different_seeds_are_not_compared(tmp_path):
    groups = [group("a", write_run(tmp_path / "a", seed=1)), group("b", write_run(tmp_path / "b", seed=2))]
    comparison = compare(groups)
    assert comparison.pairs[0].identity.verdict == "unknown"
    assert any("other seeds" in line for line in comparison.warnings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env": "starpilot"}, "other game"),
        ({"policy": "impala"}, "other network"),
        ({"num_envs": 64}, "other number of environments"),
        ({"n_steps": 128}, "other rollout length"),
        ({"num_levels": 200}, "env.num_levels"),
        ({"machine": "Other CPU"}, "other machine"),
        ({"commit": "def456-dirty"}, "other commit.*def456-dirty"),
    ],
)
def test_what_is_not_comparable_is_said(tmp_path, change, words):
    groups = [
        group("a", write_run(tmp_path / "a")),
        group("b", write_run(tmp_path / "b", learning="other", **change)),
    ]
    comparison = compare(groups)
    assert len(comparison.warnings) == 1
    assert re.search(words, comparison.warnings[0])
    assert "READ WITH CARE" in text_report(comparison)


def test_seeds_that_are_not_alike_are_said(tmp_path):
    mixed = group(
        "b", write_run(tmp_path / "b1"), write_run(tmp_path / "b2", seed=2, policy="impala", workers=4)
    )
    warnings = compare([group("a", write_run(tmp_path / "a")), mixed]).warnings
    assert any("within b, other network" in line for line in warnings)
    assert any("2 and 4 workers" in line for line in warnings)


def test_a_machine_that_was_busy_with_something_else_is_said(tmp_path):
    path = write_run(tmp_path / "b")
    text = (path / "metrics.jsonl").read_text().replace('"cpu_percent": 190.0', '"cpu_percent": 120.0')
    (path / "metrics.jsonl").write_text(text)
    comparison = compare([group("a", write_run(tmp_path / "a", workers=1)), group("b", path)])
    assert len(comparison.warnings) == 1
    assert "got 120% CPU while busy for 190%" in comparison.warnings[0]


def test_a_difference_within_the_noise_is_not_claimed(tmp_path):
    paths = [
        write_run(tmp_path / name, kind=name, workers=1, noise=0.2) for name in ("sequential", "parallel")
    ]
    comparison = compare([group("sequential", paths[0]), group("parallel", paths[1])])
    assert (
        headline(comparison)
        == "parallel and sequential: no clear difference in speed, learning the same bits"
    )


def test_runs_of_different_games_are_not_called_faster(tmp_path):
    paths = [
        write_run(tmp_path / env, env=env, workers=workers)
        for env, workers in (("coinrun", 1), ("starpilot", 2))
    ]
    comparison = compare([group("a", paths[0]), group("b", paths[1])])
    assert headline(comparison) == "b and a did different work: their speeds do not compare"


def algorithms(tmp_path, **lags):
    """Runs of equal shape under the names of algorithms, each twice as fast as the one before."""
    result = []
    for index, (name, lag) in enumerate(lags.items()):
        path = write_run(tmp_path / name, learning=name, rollout=2.0 / 2**index, learn=6.0 / 2**index)
        config = yaml.safe_load((path / "config.yaml").read_text())
        config["training"] |= {"algorithm": name.partition("_")[0], "lag": lag, "gamma": 0.9 + index / 100}
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        result.append(path)
    return result


def test_algorithms_are_compared_at_equal_steps_and_time_not_by_speed_or_bits(tmp_path):
    ppo, impala, a2c = algorithms(tmp_path, ppo=0, impala=1, a2c=0)
    comparison = compare([group("base", ppo), group("fast", impala), group("a2c", a2c)])
    assert headline(comparison).startswith("ppo / impala, lag 1 / a2c: different algorithms")
    report, rows = text_report(comparison), dict(group_rows(comparison))
    assert "base (ppo)" in report and "fast (impala, lag 1)" in report and "a2c (a2c)" not in report
    assert "speedup" not in rows and "efficiency" not in report.lower()
    assert rows["same bits"][1].startswith("not compared") and "breaks the contract" not in report
    assert comparison.warnings == [] and "training.gamma" in comparison.notes[0]
    effort = comparison.equal_effort
    assert effort.steps == 12 * 2048 and len(set(effort.return_at_steps.values())) == 1
    assert effort.return_at_time["base"] < effort.return_at_time["fast"] < effort.return_at_time["a2c"]


def test_another_game_is_still_warned_of_when_algorithms_differ(tmp_path):
    (a2c,) = algorithms(tmp_path, a2c=0)
    comparison = compare([group("a", write_run(tmp_path / "s", env="starpilot")), group("b", a2c)])
    assert [line.split(" (")[0] for line in comparison.warnings] == ["other game"]


def test_a_lag_changes_the_bits_but_its_speed_compares(tmp_path):
    plain, lagging = algorithms(tmp_path, ppo=0, ppo_lag=1)
    comparison = compare([group("plain", plain), group("lagging", lagging)])
    assert comparison.equal_effort is None and "as fast as plain" in headline(comparison)
    assert "as it may" in comparison.pairs[0].identity.sentence


def test_cpu_use_before_the_first_sample_is_not_known(tmp_path):
    path = write_run(tmp_path / "b", iterations=1)
    (path / "metrics.jsonl").write_text(
        (path / "metrics.jsonl").read_text().replace('"cpu_percent": 190.0', '"cpu_percent": 0.0')
    )
    comparison = compare([group("a", write_run(tmp_path / "a")), group("b", path)])
    assert math.isnan(comparison.groups[1].cpu_percent)
    assert dict(group_rows(comparison))["CPU use"] == ["190%", "-"]
    assert comparison.warnings == []


def test_steps_of_a_schedule_matter_only_when_it_moves(tmp_path):
    paths = [write_run(tmp_path / name, learning=name) for name in ("a", "b")]
    for schedule, expected in (("constant", 0), ("linear", 1)):
        for steps, path in enumerate(paths):
            config = yaml.safe_load((path / "config.yaml").read_text())
            config["training"] |= {"learning_rate_schedule": schedule, "schedule_steps": 1000 + steps}
            (path / "config.yaml").write_text(yaml.safe_dump(config))
        assert len(compare([group("a", paths[0]), group("b", paths[1])]).warnings) == expected


def test_all_files_are_written_and_the_json_is_strict(tmp_path, twins):
    written = write_comparison(twins, compare(twins), tmp_path / "new" / "place")
    assert {path.name for path in written} == {
        "comparison.png", "comparison_report.txt", "comparison.json", "comparison.html",
    }  # fmt: skip
    content = (tmp_path / "new" / "place" / "comparison.json").read_text()
    parsed = json.loads(content, parse_constant=pytest.fail)
    assert parsed["pairs"][0]["identity"]["verdict"] == "identical"


def test_one_iteration_each_in_progress_and_no_episodes(tmp_path):
    paths = [
        write_run(tmp_path / name, iterations=1, finished=False, workers=workers)
        for name, workers in (("a", 1), ("b", 2))
    ]
    for path in paths:
        (path / "episodes.jsonl").write_text("")
    groups = [group("a", paths[0]), group("b", paths[1])]
    comparison = compare(groups)
    assert comparison.pairs[0].speedup.value > 1
    assert "fewer than 5 iterations" in headline(comparison), "no figure without an interval"
    assert "x" not in headline(comparison)
    assert comparison.thresholds == []
    assert "200m" not in drawn_text(comparison, groups), "an empty panel has no ticks"
    assert "in progress" in text_report(comparison)
    assert len(comparison.notes) == 2


def test_the_command_takes_the_newest_runs_and_says_where_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "sequential-1", kind="sequential", workers=1)
    write_run(tmp_path / "runs" / "parallel-1", workers=2)
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "newest sequential run: runs/sequential-1" in printed
    folder = Path("runs", "comparison-sequential-1+parallel-1")
    assert f"{folder}/comparison.html" in printed
    assert (folder / "comparison.png").stat().st_size > 10_000
    write_run(tmp_path / "runs" / "parallel-2", workers=2)
    before = (folder / "comparison.json").read_bytes()
    assert main(["--parallel", "runs/parallel-2", "--quiet"]) == 0
    assert (folder / "comparison.json").read_bytes() == before, "another comparison has another folder"


@pytest.mark.parametrize(("episodes_each", "told"), [(1, "only 12 episodes yet"), (2, ", 24 episodes")])
def test_a_window_that_is_not_full_says_so(tmp_path, episodes_each, told):
    paths = [write_run(tmp_path / name, episodes_each=episodes_each) for name in "ab"]
    groups = [group("a", paths[0]), group("b", paths[1])]
    comparison = compare(groups)
    cells = dict(group_rows(comparison))["return, last 100 episodes"]
    assert all(cell.endswith(told) for cell in cells)
    assert ("fewer than 20" in drawn_text(comparison, groups)) == (episodes_each == 1)


def drawn_text(comparison, groups):
    figure = comparison_figure(groups, comparison)
    figure_bytes(figure, "png")
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_only_what_is_drawn_is_explained(tmp_path):
    """One seed has no band."""
    one = [group(name, write_run(tmp_path / name)) for name in "ab"]
    words = drawn_text(compare(one), one)
    assert "Thin lines: each iteration. Dotted" in words and "seed" not in words.partition("Thick")[2]
    two = [*one, group("c", write_run(tmp_path / "c"), write_run(tmp_path / "d", seed=2))]
    assert "over seeds, with 95 % bands" in drawn_text(compare(two), two).replace("\n", " ")


def test_identical_rows_and_warnings_appear_once(tmp_path):
    mixed = group("a", write_run(tmp_path / "a1"), write_run(tmp_path / "a2", seed=2, workers=4))
    others = [group(name, write_run(tmp_path / name)) for name in "bc"]
    comparison = compare([mixed, *others], thresholds=[0.1, 0.11, 900, 1000])
    assert len(comparison.warnings) == len(set(comparison.warnings))
    names = [name for name, _ in group_rows(comparison) if name.startswith("time to")]
    assert names == ["time to return 0.11", "time to return 900"], "passed at once; never reached"


def test_a_run_counts_once(tmp_path):
    run = str(write_run(tmp_path / "a"))
    with pytest.raises(InputError, match="is given twice for x"):
        main(["--run", f"x={run}", "--run", f"x={run}", "--run", f"y={run}"])


def test_any_text_can_be_a_label(tmp_path, capsys, monkeypatch):
    """Labels and folders are named by people, machines and environments by strangers: none of it is
    mathematics or markup."""
    monkeypatch.chdir(tmp_path)
    labels = ["a$_$", "_hidden", "x" * 400, "two\nlines \x1b[31m", "\udc80", "$\\frac$", "seconds"]
    flags, groups = [], []
    for index, label in enumerate(labels):
        path = write_run(tmp_path / f"{index}", machine=label, env=label.replace("\udc80", "$"))
        flags += ["--run", f"{label}={path}"]
        groups.append(group(one_line(label), path))
    assert main(flags) == 0
    assert "\x1b[31m" not in capsys.readouterr().out
    words = drawn_text(compare(groups), groups)
    assert all(one_line(label)[:15] in words for label in labels)


def test_labels_repeat_for_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare_command, "write_comparison", lambda *_: [])
    for name, workers, seed in (("a1", 1, 1), ("a2", 1, 2), ("b1", 4, 1)):
        write_run(tmp_path / name, workers=workers, seed=seed)
    runs = [f"one={tmp_path / 'a1'}", f"one={tmp_path / 'a2'}", f"[b]={tmp_path / 'b1'}"]
    assert (
        main([text for run in runs for text in ("--run", run)] + ["--output-dir", str(tmp_path / "out")]) == 0
    )
    assert "[b]" in capsys.readouterr().out, "a label is text, never markup"
