"""Whether groups of runs are compared rightly, and whether the answer says what the numbers say."""

import json
import re
from pathlib import Path

import pytest

from parallel_ppo.reports import compare_command
from parallel_ppo.reports.compare_command import main
from parallel_ppo.reports.comparison import compare
from parallel_ppo.reports.comparison_report import document, headline, rows
from parallel_ppo.reports.document import as_text
from tests.reports.conftest import group
from tests.reports.run_copies import copy_run, edit_rows, read_rows, write_rows

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies


def table(comparison):
    return {line.name: line.cells for line in rows(comparison)}


def first_card(comparison):
    return document(comparison).cards[0]


def test_speedup_efficiency_and_equal_bits(twins):
    comparison = compare(twins)
    pair = comparison.pairs[0]
    exact = 8.0 / (1.0 + 0.4 + 5.6 / 2)
    assert pair.speedup.value == pytest.approx(exact, rel=0.02)
    assert pair.speedup.low < pair.speedup.value < pair.speedup.high
    assert pair.efficiency.value == pytest.approx(pair.speedup.value / 2)
    assert (pair.identity.verdict, pair.identity.compared) == ("identical", 24)
    assert comparison.warnings == []
    assert headline(comparison).startswith(f"parallel is {pair.speedup.value:.2f}x (")
    assert headline(comparison).endswith("as fast as sequential; parameters are bit-identical")
    assert first_card(comparison).value == f"{pair.speedup.value:.2f}x"


def test_phases_are_seconds_per_thousand_steps(tmp_path):
    groups = [group(name, copy_run(tmp_path / name, workers=1, noise=0.0)) for name in "ab"]
    found = table(compare(groups))
    assert found["collect, per 1,000 steps"][0] == "977 ms", "2 s for 2,048 steps"
    assert found["update, per 1,000 steps"][0] == "2.9 s", "6 s for 2,048 steps"
    assert found["throughput (steps/s)"][0].startswith("256 (")
    assert found["peak memory (MB)"][0] == "520" and found["wall time"][0] == "96.0 s"


def test_efficiency_counts_the_threads_of_the_baseline(tmp_path):
    baseline = copy_run(tmp_path / "s", kind="sequential", workers=1, threads=2)
    (pair,) = compare([group("s", baseline), group("p", copy_run(tmp_path / "p", workers=2))]).pairs
    assert pair.efficiency.value == pytest.approx(pair.speedup.value)


def test_equal_hashes_prove_equal_learning(tmp_path):
    """Threads and commits that differ then need no warning."""
    one = copy_run(tmp_path / "s", kind="sequential", workers=1, threads=2, commit="old")
    assert compare([group("s", one), group("p", copy_run(tmp_path / "p"))]).warnings == []
    other = copy_run(tmp_path / "o", learning="other")
    warnings = compare([group("s", one), group("o", other)]).warnings
    assert any("num_threads" in line for line in warnings) and any(
        "other commit" in line for line in warnings
    )


def test_the_first_different_bit_is_located(tmp_path):
    first, second = copy_run(tmp_path / "a", kind="sequential", workers=1), copy_run(tmp_path / "b")
    records = read_rows(second / "metrics.jsonl")
    for row in records[4:]:
        row["policy_sha256"] = "f" * 64
    write_rows(second / "metrics.jsonl", records)
    comparison = compare([group("a", first), group("b", second)])
    identity = comparison.pairs[0].identity
    assert identity.verdict == "different" and f"step {5 * 2048:,}" in identity.sentence
    assert "breaks the contract" in identity.sentence
    assert headline(comparison).endswith("; parameters differ")


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 2, "kind": "sequential", "workers": 1},
        {"training__lag": 1},
        {"curiosity__kind": "rnd"},
        {"training__gamma": 0.5},
    ],
)
def test_bits_that_differ_for_a_reason_break_no_contract(tmp_path, change):
    groups = [
        group("a", copy_run(tmp_path / "a")),
        group("b", copy_run(tmp_path / "b", learning="x", **change)),
    ]
    identity = compare(groups).pairs[0].identity
    assert identity.verdict == "different" and ", as expected: other" in identity.sentence


def test_bits_of_different_seeds_are_not_compared(tmp_path):
    groups = [group("a", copy_run(tmp_path / "a", seed=1)), group("b", copy_run(tmp_path / "b", seed=2))]
    comparison = compare(groups)
    assert comparison.pairs[0].identity.verdict == "unknown"
    assert any("other seeds" in line for line in comparison.warnings)


@pytest.mark.parametrize(
    ("change", "words", "is_void"),
    [
        ({"training__algorithm": "impala"}, "other algorithm", True),
        ({"env__id": "Acrobot-v1"}, "other game", True),
        ({"training__policy": "impala"}, "other network", True),
        ({"env__num_envs": 64}, "other number of environments", True),
        ({"curiosity__kind": "rnd"}, "other curiosity", True),
        ({"env__num_levels": 200}, "env.num_levels", False),
        ({"machine": "Other CPU"}, "other machine", True),
        ({"commit": "def456-dirty"}, "other commit.*def456-dirty", False),
    ],
)
def test_differences_are_warnings_and_may_void_a_speedup(tmp_path, change, words, is_void):
    groups = [
        group("a", copy_run(tmp_path / "a")),
        group("b", copy_run(tmp_path / "b", learning="other", rollout=1.0, learn=3.0, **change)),
    ]
    comparison = compare(groups)
    assert len(comparison.warnings) == 1 and re.search(words, comparison.warnings[0])
    assert ("cannot be compared" in headline(comparison)) == is_void
    assert (first_card(comparison).value == "not comparable") == is_void
    assert ("not comparable" in table(comparison)["speedup"]) == is_void


def test_seeds_that_are_not_alike_are_warnings(tmp_path):
    paths = copy_run(tmp_path / "b1"), copy_run(tmp_path / "b2", seed=2, training__policy="impala", workers=4)
    warnings = compare([group("a", copy_run(tmp_path / "a")), group("b", *paths)]).warnings
    assert any("within b, other network" in line for line in warnings)
    assert any("2 and 4 workers" in line for line in warnings)


def test_a_busy_machine_voids_the_speedup(tmp_path):
    path = copy_run(tmp_path / "b")
    edit_rows(path, cpu_percent=120.0)
    comparison = compare([group("a", copy_run(tmp_path / "a", workers=1)), group("b", path)])
    assert "got 120% CPU but needed 190%" in comparison.warnings[0]
    assert headline(comparison).startswith(
        "The speeds of b and a cannot be compared: other programs used the machine during b;"
    )
    assert first_card(comparison).value == "not comparable"


def test_headline_and_card_agree_where_nothing_is_significant(tmp_path):
    groups = [
        group(name, copy_run(tmp_path / name, kind=name, workers=1, noise=0.2))
        for name in ("sequential", "parallel")
    ]
    comparison = compare(groups)
    value = f"{comparison.pairs[0].speedup.value:.2f}x"
    assert headline(comparison).startswith(
        f"parallel and sequential: no significant speed difference, {value} ("
    )
    assert first_card(comparison).value == value


def test_a_lag_changes_the_bits_but_its_speed_compares(tmp_path):
    lagging = copy_run(tmp_path / "b", learning="x", training__lag=1, rollout=1.0, learn=3.0)
    comparison = compare([group("plain", copy_run(tmp_path / "a")), group("lagging", lagging)])
    assert "as fast as plain" in headline(comparison)


def test_cpu_use_before_the_first_sample_is_unknown(tmp_path):
    path = copy_run(tmp_path / "b")
    edit_rows(path, cpu_percent=0.0)
    comparison = compare([group("a", copy_run(tmp_path / "a")), group("b", path)])
    assert table(comparison)["CPU use"] == ["190%", "-"] and comparison.warnings == []


@pytest.mark.parametrize(("schedule", "expected"), [("constant", 0), ("linear", 1)])
def test_steps_of_a_schedule_matter_only_when_it_moves(tmp_path, schedule, expected):
    fixed = {"training__learning_rate_schedule": schedule, "training__clip_range_schedule": "constant"}
    groups = [
        group(
            str(steps),
            copy_run(tmp_path / str(steps), learning=str(steps), training__schedule_steps=steps, **fixed),
        )
        for steps in (1000, 1001)
    ]
    assert len(compare(groups).warnings) == expected


def test_a_few_seeds_are_shown_instead_of_an_interval(tmp_path):
    """Real runs differ by seed in their returns; the copies by 1 for each."""
    few, many = (
        group(
            str(number),
            *[copy_run(tmp_path / f"{number}-{seed}", seed=seed) for seed in range(1, number + 1)],
        )
        for number in (2, 5)
    )
    cells = table(compare([few, many]))["return, last 100 episodes"]
    assert re.fullmatch(r"[\d.]+ \(seeds [\d.]+, [\d.]+\), \d+ episodes", cells[0])
    assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\), \d+ episodes", cells[1])


def test_one_iteration_in_progress_without_episodes(tmp_path):
    paths = [copy_run(tmp_path / name, iterations=1, finished=False) for name in "ab"]
    for path in paths:
        (path / "episodes.jsonl").write_text("")
    groups = [group("a", paths[0]), group("b", paths[1])]
    comparison = compare(groups)
    assert headline(comparison).startswith("b and a: fewer than 5 iterations, too few to compare speeds")
    assert first_card(comparison).value == "too few iterations"
    assert "in progress" in as_text(document(comparison)) and len(comparison.notes) == 2
    assert table(comparison)["return, last 100 episodes"] == ["only 0 episodes yet"] * 2


def test_identical_warnings_appear_once(tmp_path):
    mixed = group("a", copy_run(tmp_path / "a1"), copy_run(tmp_path / "a2", seed=2, workers=4))
    others = [group(name, copy_run(tmp_path / name)) for name in "bc"]
    warnings = compare([mixed, *others]).warnings
    assert warnings and len(warnings) == len(set(warnings))


def test_the_command_takes_the_newest_runs_and_writes_all_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    copy_run(tmp_path / "runs" / "sequential-1", kind="sequential", workers=1)
    copy_run(tmp_path / "runs" / "parallel-1", workers=2)
    assert main(["--format", "pdf"]) == 0
    printed = capsys.readouterr().out
    folder = Path("runs", "comparison-sequential-1+parallel-1")
    assert "newest sequential run: runs/sequential-1" in printed and f"{folder}/comparison.html" in printed
    assert {path.name for path in folder.iterdir()} == {
        "comparison.png", "comparison_report.txt", "comparison.json", "comparison.html", "results.csv",
        "return_over_time.pdf", "return_over_steps.pdf", "throughput.pdf", "phases.pdf", "evaluation.pdf",
    }  # fmt: skip
    parsed = json.loads((folder / "comparison.json").read_text(), parse_constant=pytest.fail)
    found = parsed["tables"]["Comparison"]
    assert found["speedup"]["parallel"]["value"] > 1 and found["bit-identical"]["parallel"].startswith("yes")
    before = (folder / "comparison.json").read_bytes()
    monkeypatch.setattr(compare_command, "write_comparison", lambda *_, **__: [])
    copy_run(tmp_path / "runs" / "parallel-2", workers=2)
    assert main(["--parallel", "runs/parallel-2", "--quiet"]) == 0
    assert (folder / "comparison.json").read_bytes() == before
