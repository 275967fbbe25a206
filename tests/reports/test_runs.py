import json
import os

import numpy as np
import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.reports import runs
from parallel_ppo.reports.curves import iteration_returns, phase_cost, return_curve, timing
from parallel_ppo.reports.groups import group_seeds
from parallel_ppo.reports.runs import find_runs, load_run, newest_run
from tests.reports.run_copies import copy_run

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies


def test_a_run_directory_is_read_whole(tmp_path):
    run = load_run(copy_run(tmp_path / "a", iterations=5, workers=3, seed=9))
    assert len(run) == 5
    assert run.kind == "parallel"
    assert run.seed == 9
    assert run.num_workers == 3
    assert run.env_id == "CartPole-v1"
    assert run.setting("training.gamma") == 0.98
    assert run.setting("training.no_such", "x") == "x"
    assert not run.in_progress
    assert run.notes == ()
    assert np.isfinite(run.column("eval_train_return")).tolist() == [False] * 4 + [True]
    assert np.isnan(run.column("never_written")).all()


def test_seconds_follow_the_clock_so_that_checkpoints_count(tmp_path):
    path = copy_run(tmp_path / "a", iterations=3, noise=0.0)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row["wall_time"] += 5.0
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load_run(path)
    assert run.iteration_seconds()[1] == pytest.approx(rows[1]["t_iter"] + 5.0)
    assert phase_cost([run])["other"] == pytest.approx(5.0 * 1000 / (2 * 2048)), "the first warms up"


@pytest.mark.parametrize(
    "tail", [b'{"iteration": 6, "steps_gl', b'{"iteration": 6, "note": "\xc3', b"\n", b""]
)
def test_a_torn_last_line_is_left_out(tmp_path, tail):
    path = copy_run(tmp_path / "a", iterations=5)
    with (path / "metrics.jsonl").open("ab") as log:
        log.write(tail)
    run = load_run(path)
    assert len(run) == 5
    assert any("torn" in note for note in run.notes) == bool(tail.strip())


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = copy_run(tmp_path / "a", iterations=3)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1][:20]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        load_run(path)


def test_one_iteration_is_enough(tmp_path):
    run = load_run(copy_run(tmp_path / "a", iterations=1))
    assert len(run) == 1
    assert sum(phase_cost([run]).values()) > 0


def test_a_run_in_progress_is_read_and_noted(tmp_path):
    run = load_run(copy_run(tmp_path / "a", finished=False))
    assert run.in_progress
    assert any("in progress" in note for note in run.notes)


def test_an_earlier_summary_does_not_end_a_resumed_run(tmp_path):
    path = copy_run(tmp_path / "a")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "env_steps": summary["env_steps"] // 2}))
    assert load_run(path).in_progress


def test_an_interrupted_run_is_noted(tmp_path):
    path = copy_run(tmp_path / "a")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "exit_code": 130, "stop_reason": "SIGINT"}))
    assert any("ended early: SIGINT" in note for note in load_run(path).notes)


@pytest.mark.parametrize(
    ("missing", "message"),
    [("metrics.jsonl", "no .*metrics.jsonl"), ("config.yaml", "has no config.yaml")],
)
def test_a_missing_required_file_is_named(tmp_path, missing, message):
    path = copy_run(tmp_path / "a")
    (path / missing).unlink()
    with pytest.raises(InputError, match=message):
        load_run(path)


def test_a_missing_optional_file_is_a_note(tmp_path):
    path = copy_run(tmp_path / "a")
    (path / "run.json").unlink()
    (path / "episodes.jsonl").unlink()
    run = load_run(path)
    assert run.kind == "parallel", "by its workers"
    assert run.seed == 1
    assert np.isfinite(return_curve(run)[-1]), "from the column"
    assert any("run.json" in note for note in run.notes)


def test_other_wrong_inputs_are_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    empty = copy_run(tmp_path / "empty", iterations=1)
    (empty / "metrics.jsonl").write_text("")
    other = copy_run(tmp_path / "other", iterations=1)
    (other / "metrics.jsonl").write_text('{"loss": 1}\n')
    listed = copy_run(tmp_path / "listed", iterations=1)
    (listed / "metrics.jsonl").write_text("[1]\n{}\n")
    broken = copy_run(tmp_path / "broken", iterations=1)
    (broken / "config.yaml").write_text("a: [1\n")
    for path in (
        tmp_path / "none",
        tmp_path / "file",
        empty,
        other,
        listed,
        broken,
        tmp_path / "none" / "metrics.jsonl",
    ):
        with pytest.raises(InputError) as caught:
            load_run(path)
        assert "\n" not in str(caught.value)


def plant(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "long line":
        path.write_bytes(b'{"a": "' + b"x" * (2 << 20) + b'"}\n{}\n')
    elif kind == "deep":
        path.write_bytes(b"[" * 50_000 + b"\n{}\n")


@pytest.mark.parametrize(
    "file", ["metrics.jsonl", "episodes.jsonl", "config.yaml", "run.json", "summary.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "huge", "long line", "deep"])
def test_files_that_never_end_or_are_too_large(tmp_path, file, kind):
    path = copy_run(tmp_path / "a", iterations=3)
    plant(path / file, kind)
    if file in ("run.json", "summary.json"):
        assert any(file in note for note in load_run(path).notes)
    elif (file, kind) == ("config.yaml", "long line"):
        with pytest.raises(InputError, match="expected at most"):
            load_run(path)
    else:
        with pytest.raises(InputError, match=file) as caught:
            load_run(path)
        assert "\n" not in str(caught.value)


def test_anchors_in_a_config_are_refused(tmp_path):
    path = copy_run(tmp_path / "a", iterations=3)
    (path / "config.yaml").write_text("a: &x {}\n")
    with pytest.raises(InputError, match="anchors or aliases"):
        load_run(path)


@pytest.mark.parametrize(
    "row",
    [{"steps_global": 1e999}, {"steps_global": 10**400}, {"steps_global": float("nan")}, {"steps_global": 0}],
)
def test_impossible_steps_are_refused(tmp_path, row):
    path = copy_run(tmp_path / "a", iterations=3)
    with (path / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="steps_global"):
        load_run(path)


def test_a_log_with_more_columns_than_can_be_held(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MAX_CELLS", 1000)
    path = copy_run(tmp_path / "a", iterations=3)
    (path / "metrics.jsonl").write_text("".join(f'{{"c{index}": 1}}\n' for index in range(100)))
    with pytest.raises(InputError, match="more than can be shown"):
        load_run(path)


def test_text_from_a_stranger_is_one_printable_line(tmp_path):
    path = copy_run(tmp_path / "a", machine="\x1b[31mCPU\n2\udc80" + "x" * 1000)
    (path / "config.yaml").write_text("training:\n  policy: " + "f" * 6000 + "\n")
    run = load_run(path)
    assert run.machine["cpu_model"].startswith("\\x1b[31mCPU 2?xxx")
    assert len(run.machine["cpu_model"]) == 300
    assert len(run.setting("training.policy")) == 300


def test_exchange_is_part_of_the_update_and_counted_once(tmp_path):
    run = load_run(copy_run(tmp_path / "a", iterations=3, exchange=0.5))
    costs, steps = phase_cost([run]), 2 * 2048 / 1000
    assert steps * (costs["learn"] + costs["sync"]) == pytest.approx(run.column("t_learn")[1:].sum())
    assert steps * sum(costs.values()) == pytest.approx(run.iteration_seconds()[1:].sum())


def test_a_log_without_a_run_directory_can_be_read(tmp_path):
    path = copy_run(tmp_path / "a", iterations=4)
    alone = tmp_path / "alone" / "log.jsonl"
    alone.parent.mkdir()
    alone.write_bytes((path / "metrics.jsonl").read_bytes())
    assert len(load_run(alone)) == 4
    assert len(load_run(path / "metrics.jsonl")) == 4


def test_the_newest_run_of_a_kind_is_found(tmp_path):
    for number, kind in enumerate(["sequential", "parallel", "sequential", "parallel"]):
        path = copy_run(tmp_path / f"run-{number}", kind=kind, iterations=1)
        os.utime(path / "metrics.jsonl", (1000 + number, 1000 + number))
    assert newest_run(tmp_path, kind="sequential").name == "run-2"
    assert find_runs(tmp_path)[-1].name == "run-3"
    deep = copy_run(tmp_path / "suite-1" / "coinrun-seed1", kind="sequential", iterations=1)
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "metrics.jsonl")
    assert newest_run(tmp_path, kind="sequential") == deep
    with pytest.raises(InputError, match="make train-parallel"):
        newest_run(tmp_path / "nothing", kind="parallel")


def test_timings_leave_out_the_first_iteration(tmp_path):
    path = copy_run(tmp_path / "a", iterations=5, workers=1, noise=0.0)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["wall_time"] += 100.0
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load_run(path)
    assert timing(run).throughput == pytest.approx(2048 / 8)
    cost = phase_cost([run])
    assert cost["rollout"] == pytest.approx(2.0 / 2.048)
    assert cost["learn"] == pytest.approx(6.0 / 2.048)
    assert cost["other"] == pytest.approx(0.0, abs=1e-9)


def test_returns_per_iteration(tmp_path):
    run = load_run(copy_run(tmp_path / "a", iterations=4))
    slow = [run.episodes.returns[run.episodes.iteration == iteration].mean() for iteration in range(1, 5)]
    np.testing.assert_allclose(iteration_returns(run), slow)


def test_seeds_become_a_group_and_other_settings_do_not(tmp_path):
    members = [load_run(copy_run(tmp_path / f"s{seed}", seed=seed)) for seed in (1, 2, 3)]
    members.append(load_run(copy_run(tmp_path / "other", seed=4, training__policy="impala")))
    members.append(load_run(copy_run(tmp_path / "again", seed=1)))
    members.append(load_run(copy_run(tmp_path / "curious", seed=5, curiosity__kind="rnd")))
    assert [len(group.runs) for group in group_seeds(members)] == [3, 1, 1, 1]


def test_a_run_may_be_named_by_its_name_in_runs(tmp_path, monkeypatch):
    copy_run(tmp_path / "runs" / "mine", iterations=5)
    monkeypatch.chdir(tmp_path)
    assert load_run("mine").path == load_run("runs/mine").path


def test_json_that_is_read_but_too_deep_is_left_out(tmp_path):
    """Deeper than a function may call itself, not so deep that the parser gives up."""
    path = copy_run(tmp_path / "a", iterations=3)
    (path / "summary.json").write_text('{"a": ' * 600 + "1" + "}" * 600)
    assert any("summary.json" in note for note in load_run(path).notes)
