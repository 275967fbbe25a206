"""The plan of a suite, its results, and whether its page leads with the right answer."""

import csv
import json
from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.reports import statistics, theme
from parallel_ppo.reports.document import as_html, as_text
from parallel_ppo.reports.suite import Job, Plan, load_plan, load_suite_runs, save_plan
from parallel_ppo.reports.suite_report import document, headline, improvement, panels, write_suite
from parallel_ppo.reports.suite_report import results as results_of
from tests.reports.run_copies import copy_run, write_evaluation

pytestmark = pytest.mark.usefixtures("real_run")  # which `copy_run` copies


def make_suite(directory, games, settings=("",), seeds=(1, 2)):
    """Each setting has higher evaluations than the one before."""
    plan = Plan(
        games=list(games),
        seeds=list(seeds),
        total_timesteps=1_200_000,
        duration=None,
        arguments=["--num-levels", "200"],
        settings={name: ["--set", f"training.seed={name}"] if name else [] for name in settings},
    )
    for job in plan.jobs():
        is_procgen = job.game != "CartPole-v1"
        chosen = {"env__id": f"procgen:procgen-{job.game}-v0", "env__num_levels": 200} if is_procgen else {}
        path = copy_run(directory / job.name, seed=job.seed, steps_each=131_072, **chosen)
        better = 0.5 * list(settings).index(job.setting)
        unseen = {"test": 6.0 + job.seed / 4 + better} if is_procgen else {}
        write_evaluation(path, {"train": 8.0 + job.seed / 4 + better, **unseen})
    return directory, replace(plan, finished=plan.names())


def results(directory, plan):
    return results_of(plan, load_suite_runs(plan, directory))


def table(title, directory, plan):
    """The cells of a table by the names of its rows."""
    found = {each.title: each for each in document(results(directory, plan)).tables}
    return {row.name: row.cells for row in found[title].rows}


def drawn(panel):
    with theme.drawing():
        return theme.panel_figure(panel).axes[0]


@pytest.fixture
def suite(tmp_path):
    return make_suite(tmp_path, ["coinrun", "CartPole-v1"])


def test_a_plan_survives_the_disk(tmp_path):
    plan = Plan(
        games=["coinrun"], seeds=[1], total_timesteps=None, duration=0.5, arguments=["--policy", "nature"]
    )
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["suite.json"]


@pytest.mark.parametrize("name", ["\x1b[2J", "a\x00b", "two\nlines"])
def test_a_plan_with_names_that_are_no_text_is_refused(tmp_path, name):
    for plan in (
        Plan(games=[name], seeds=[1], total_timesteps=1, duration=None),
        Plan(games=["coinrun"], seeds=[1], total_timesteps=1, duration=None, settings={name: []}),
    ):
        save_plan(plan, tmp_path)
        with pytest.raises(InputError, match="cannot be read as a suite"):
            load_plan(tmp_path)


@pytest.mark.parametrize(
    "change",
    ["{", "[]", {"games": 1}, {"seeds": ["1"]}, {"settings": {"a": "b"}}, {"failed": [1]},
     {"seeds": list(range(200_000))}],
)  # fmt: skip
def test_a_damaged_plan_is_one_line(tmp_path, change):
    with pytest.raises(InputError, match=r"no .*suite\.json"):
        load_plan(tmp_path)
    save_plan(Plan(games=["coinrun"], seeds=[1], total_timesteps=1, duration=None), tmp_path)
    path = tmp_path / "suite.json"
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"suite\.json (cannot be read|has more than)") as caught:
        load_plan(tmp_path)
    assert "\n" not in str(caught.value)


def test_every_game_and_setting_comes_before_the_second_seed():
    plan = Plan(
        games=["a", "m:b/c"], seeds=[1, 2], total_timesteps=1, duration=None, settings={"x": [], "y": []}
    )
    assert plan.names()[:5] == ["a-x-seed1", "a-y-seed1", "m_b_c-x-seed1", "m_b_c-y-seed1", "a-x-seed2"]
    assert Job("a", "", 3).name == "a-seed3"


def test_scores_and_published_values_at_equal_steps(suite):
    directory, plan = suite
    coinrun, cartpole = results(*suite).entries
    members = load_suite_runs(plan, directory)["coinrun", ""]
    assert coinrun.final_return().value == pytest.approx(
        np.mean([run.episodes.returns[-100:].mean() for run in members])
    )
    assert coinrun.returns("train").value == pytest.approx(8.375)
    assert coinrun.returns("test").value == pytest.approx(6.375)
    assert coinrun.gap().value == pytest.approx(2.0)
    assert table("Mean returns", *suite)["coinrun"][4:6] == [
        "6.38 (seeds 6.25, 6.50)",
        "6.88 (seeds 6.75, 7.00)",
    ]
    assert coinrun.scores("test") == pytest.approx([(6.25 - 5) / 5, (6.5 - 5) / 5])
    near = [run.episodes.returns[np.abs(run.episodes.step - 1e6) <= 150_000].mean() for run in members]
    published = table("Published returns", *suite)
    assert published == {"coinrun, 1M steps": [f"{np.mean(near):.2f}", "7.90"]}, "no run went to 2M"
    assert len(cartpole.scores("train")) == 0 and cartpole.returns("train").value == pytest.approx(8.375)


def test_mujoco_is_shown_beside_published_returns_of_a_million_steps(tmp_path):
    plan = Plan(games=["Hopper-v5", "Reacher-v5"], seeds=[1, 2], total_timesteps=10**6, duration=None)
    for job in plan.jobs():
        steps = 131_072 if job.game == "Hopper-v5" else 2048
        copy_run(tmp_path / job.name, seed=job.seed, steps_each=steps, env__id=job.game)
    title = "MuJoCo after a million steps, beside published PPO"
    hopper = results(tmp_path, plan).entries[0]
    mean = hopper.final_return().value
    assert table(title, tmp_path, plan) == {
        "Hopper-v5": ["2", ANY, f"{mean:,.1f}", "2,382.9 +- 271.7", "2,410.4 +- 10.0"]
    }, "Reacher has not reached a million"
    assert "v5: Hopper-v5: no reward for being healthy" in document(results(tmp_path, plan)).footnotes[-1]


def test_the_best_setting_leads(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun", "jumper"], ["plain", "better"], seeds=(1, 2, 3))
    result = results(directory, plan)
    scores = [[(value - low) / (10 - low) for value in (6.75, 7.0, 7.25)] for low in (5, 1)]
    best, second, *_ = result.standings
    assert [each.name for each in result.standings[:2]] == ["better, unseen levels", "plain, unseen levels"]
    assert best.iqm.value == pytest.approx(float(statistics.iqm(np.ravel(scores))))
    games, probability = improvement(best, second)
    assert (games, probability.value) == (2, pytest.approx(8.5 / 9)), "one tie in nine pairs"
    assert headline(result).startswith(f"Best: better, IQM {best.iqm.value:.2f} (")
    shown = f"0.94 ({probability.low:.2f} to {probability.high:.2f})"
    assert headline(result).endswith(f"on unseen levels; better than plain with probability {shown}")
    report = document(result)
    assert [card.value for card in report.cards[:2]] == [f"{best.iqm.value:.2f}", "0.94"]
    improvements = table("Probability of improvement", directory, plan)
    assert improvements["better better than plain, unseen levels"] == ["2", shown]
    scores = list(table("Normalized scores of all games", directory, plan))
    assert scores[:2] == ["better, unseen levels", "plain, unseen levels"]
    assert "better: --num-levels 200 --set training.seed=better" in report.notes


def test_below_five_runs_a_suite_shows_no_interval(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun", "jumper"], ["plain", "better"])
    report = document(results(directory, plan))
    assert report.headline == (
        "No clear winner. Highest: better, IQM 0.52 on unseen levels; better than plain with probability 1.00"
    )
    assert report.cards[0].detail == "too few runs for an interval"
    assert "each run" in [text.get_text() for text in drawn(report.panels[0]).get_legend().get_texts()]


def test_without_a_clear_difference_there_is_no_winner(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun"], ["plain", "same"])
    for seed in (1, 2):
        write_evaluation(directory / f"coinrun-same-seed{seed}", {"train": 8.0, "test": 6.5 - seed / 8})
    assert headline(results(directory, plan)).startswith("No clear winner. Highest: ")


def test_axes_fit_negative_scores(tmp_path):
    directory, plan = make_suite(tmp_path, ["fruitbot"])
    for seed in (1, 2):
        write_evaluation(directory / f"fruitbot-seed{seed}", {"train": -3.0, "test": -9.0 - seed})
    axes = drawn(panels(results(directory, plan))[0])
    lowest = min(float(np.min(line.get_xdata())) for line in axes.lines)
    assert lowest < 0 and axes.get_xlim()[0] <= lowest


@pytest.mark.parametrize(
    "change",
    [
        {"policy_sha256": "0"},
        {"env_id": "procgen:procgen-jumper-v0"},
        {"num_episodes": 8},
        {"max_steps": 40},
        {"deterministic": True},
        {"seed": 1},
        {"levels": {"train": {"return": {"mean": {"value": 1.0}}}}},
        {"levels": {"train": {"return": {"mean": {"value": float("nan")}}}, "test": {"return": 7}}},
        {"levels": 7},
    ],
)
def test_an_evaluation_with_other_settings_is_not_used(suite, change):
    directory, plan = suite
    path = directory / "coinrun-seed2" / "suite_evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    coinrun, _ = results(directory, plan).entries
    assert coinrun.scores("test") == pytest.approx([(6.25 - 5) / 5])
    assert coinrun.scores("train") == pytest.approx([(8.25 - 5) / 5])


def test_the_evaluation_of_a_user_does_not_reach_the_suite(suite):
    """`evaluate.py RUN` writes evaluation.json, with settings that the user chose."""
    directory, plan = suite
    before = as_text(document(results(directory, plan)))
    for run in (directory / name for name in plan.finished):
        write_evaluation(run, {"train": 1.0, "test": 1.0}, file=run / "evaluation.json")
    assert as_text(document(results(directory, plan))) == before


def test_page_json_csv_and_pdfs(suite, monkeypatch):
    directory, plan = suite
    monkeypatch.setattr(theme, "save", lambda _figure, path: path)
    written = write_suite(plan, load_suite_runs(plan, directory), directory, kind="pdf")
    names = [path.name for path in written]
    assert names[:3] == ["results.html", "results.json", "results.csv"]
    assert names[3:] == ["iqm.pdf", "game_0.pdf", "game_1.pdf"]
    rows = list(csv.DictReader((directory / "results.csv").open()))
    assert [row["seed"] for row in rows] == ["1", "2", "1", "2"]
    assert float(rows[0]["score_test_levels"]) == pytest.approx(0.25)
    assert rows[2]["score_test_levels"] == ""
    content = json.loads((directory / "results.json").read_text(), parse_constant=pytest.fail)
    unseen = content["tables"]["Mean returns"]["coinrun"]["unseen levels"]
    assert unseen == {"value": 6.375, "low": None, "high": None, "seeds": [6.25, 6.5]}


def test_failures_and_names_are_shown_as_text(suite):
    directory, plan = suite
    plan = replace(plan, failed={"<b>x</b>": "<script>\x1b[31m"}, settings={"": ["--env", "<script>"]})
    page = as_html(document(results(directory, plan)))
    assert "<script" not in page and "<b>x" not in page and "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_a_suite_that_has_just_begun(tmp_path):
    plan = Plan(games=["coinrun"], seeds=[1], total_timesteps=10, duration=None)
    (tmp_path / "victim").write_text("mine")
    for name in ("results.html", "results.json", "results.csv"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    write_suite(plan, load_suite_runs(plan, tmp_path), tmp_path)
    assert (tmp_path / "victim").read_text() == "mine", "a link in a downloaded suite leads nowhere"
    assert "1 run not finished yet: coinrun-seed1" in (tmp_path / "results.json").read_text()
